// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// coarse is the steps in which a file system may count the time of a change. A
// file read sooner after its change may have changed again in the same step.
const coarse = 2 * time.Second

// look is what a file looks like without reading it. The zero look is of no file.
type look struct {
	info fs.FileInfo
	at   time.Time
}

// lookAt follows symbolic links, so that one that points elsewhere looks different.
func lookAt(path string) look {
	info, err := os.Stat(path)
	if err != nil {
		return look{at: time.Now()}
	}
	return look{info: info, at: time.Now()}
}

// same says that nothing happened to the file between two looks. A file renamed
// over another is a different one, even with the same size and time.
func (l look) same(o look) bool {
	if l.info == nil || o.info == nil {
		return l.info == nil && o.info == nil
	}
	return os.SameFile(l.info, o.info) && l.info.Size() == o.info.Size() && l.info.ModTime().Equal(o.info.ModTime())
}

// unsure says that a change after this look may not look different.
func (l look) unsure() bool {
	return l.info == nil || l.at.Sub(l.info.ModTime()) < coarse
}

// looks are looks at all files that a value is made of.
type looks []look

func looksAt(paths []string) looks {
	all := make(looks, 0, len(paths))
	for _, path := range paths {
		all = append(all, lookAt(path))
	}
	return all
}

// same says that nothing happened to any of the files, nor to which they are.
func (l looks) same(o looks) bool { return slices.EqualFunc(l, o, look.same) }

// sure says that a change of any of the files would look different.
func (l looks) sure() bool { return len(l) > 0 && !slices.ContainsFunc(l, look.unsure) }

// Read gives what is in a file, for a parser that needs further ones.
func Read(path string, most int64) ([]byte, error) {
	data, _, err := read(path, most)
	return data, err
}

// read gives what is in a file, and how it looked before it was read.
func read(path string, most int64) ([]byte, look, error) {
	// A pipe would block in open.
	if info, err := os.Stat(path); err != nil {
		return nil, look{}, err
	} else if !info.Mode().IsRegular() {
		return nil, look{}, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, look{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, look{}, err
	}
	l := look{info: info, at: time.Now()}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, look{}, err
	}
	if int64(len(data)) > most {
		return nil, look{}, fmt.Errorf("%s: %w: at most %d bytes are read", path, errTooLarge, most)
	}
	return data, l, nil
}

var (
	errNotRegular = errors.New("is not a regular file")
	errTooLarge   = errors.New("is too large")
)
