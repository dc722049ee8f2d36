// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/holdgate/holdgate/internal/regular"
)

// coarse is the coarsest resolution of a file's modification time. A file that is read
// sooner after its change may have changed again within the same step.
const coarse = 2 * time.Second

// look is the metadata of a file at a time. The zero look is that of no file.
type look struct {
	info fs.FileInfo
	at   time.Time
}

// lookAt follows symbolic links, so that a link with a new target looks different.
func lookAt(path string) look {
	info, err := os.Stat(path)
	if err != nil {
		return look{at: time.Now()}
	}
	return look{info: info, at: time.Now()}
}

// same reports whether the file did not change between two looks. A file renamed over
// another is a different one, even with the same size and time.
func (l look) same(o look) bool {
	if l.info == nil || o.info == nil {
		return l.info == nil && o.info == nil
	}
	return os.SameFile(l.info, o.info) && l.info.Size() == o.info.Size() && l.info.ModTime().Equal(o.info.ModTime())
}

// unsure reports whether a change after this look may not be visible.
func (l look) unsure() bool {
	return l.info == nil || l.at.Sub(l.info.ModTime()) < coarse
}

// looks are those of all files that a value was made of.
type looks []look

func looksAt(paths []string) looks {
	all := make(looks, 0, len(paths))
	for _, path := range paths {
		all = append(all, lookAt(path))
	}
	return all
}

// same reports whether the files are the same ones and none changed.
func (l looks) same(o looks) bool { return slices.EqualFunc(l, o, look.same) }

// sure reports whether a change of any of the files would be visible.
func (l looks) sure() bool { return len(l) > 0 && !slices.ContainsFunc(l, look.unsure) }

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	data, _, err := read(path, limit)
	return data, err
}

// read returns the content of a file, and how it looked before it was read.
func read(path string, limit int64) ([]byte, look, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, look{}, err
	}
	before := look{info: info, at: time.Now()}
	data, _, err := regular.Read(path, limit+1)
	if err != nil {
		return nil, look{}, err
	}
	if int64(len(data)) > limit {
		return nil, look{}, fmt.Errorf("%s: %w: at most %d bytes are read", path, errTooLarge, limit)
	}
	return data, before, nil
}

var errTooLarge = errors.New("is too large")
