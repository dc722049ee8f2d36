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

// coarse is the coarsest resolution of modification times. If a file is read sooner than
// this after a change, another change may have the same modification time.
const coarse = 2 * time.Second

// fileState is the metadata of a file at a time. info is nil if there is no file.
type fileState struct {
	info fs.FileInfo
	at   time.Time
}

// stateOf returns the state of a file. It follows symbolic links, so that a link with a new
// target has another state.
func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{at: time.Now()}
	}
	return fileState{info: info, at: time.Now()}
}

// same reports whether two states are of the same, unchanged file. A file that was renamed
// over another is not the same, even with the same size and time.
func (l fileState) same(o fileState) bool {
	if l.info == nil || o.info == nil {
		return l.info == nil && o.info == nil
	}
	return os.SameFile(l.info, o.info) && l.info.Size() == o.info.Size() && l.info.ModTime().Equal(o.info.ModTime())
}

// mayHideChange reports whether a change after this state might result in the same state.
func (l fileState) mayHideChange() bool {
	return l.info == nil || l.at.Sub(l.info.ModTime()) < coarse
}

// fileStates are the states of all files from which a value was made.
type fileStates []fileState

func statesOf(paths []string) fileStates {
	all := make(fileStates, 0, len(paths))
	for _, path := range paths {
		all = append(all, stateOf(path))
	}
	return all
}

// same reports whether all files are the same and unchanged.
func (l fileStates) same(o fileStates) bool { return slices.EqualFunc(l, o, fileState.same) }

// reliable reports whether any later change of the files is visible in their states.
func (l fileStates) reliable() bool {
	return len(l) > 0 && !slices.ContainsFunc(l, fileState.mayHideChange)
}

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	data, _, err := read(path, limit)
	return data, err
}

// read returns the content of a file, and its state before it was read.
func read(path string, limit int64) ([]byte, fileState, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileState{}, err
	}
	before := fileState{info: info, at: time.Now()}
	data, _, err := regular.Read(path, limit+1)
	if err != nil {
		return nil, fileState{}, err
	}
	if int64(len(data)) > limit {
		return nil, fileState{}, fmt.Errorf("%s: %w: at most %d bytes are read", path, errTooLarge, limit)
	}
	return data, before, nil
}

var errTooLarge = errors.New("is too large")
