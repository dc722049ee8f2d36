// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// MaxBytes is the largest file that is read unless Options says otherwise.
const MaxBytes = 16 << 20

// Options are the options of a File. Only Setting is required.
type Options struct {
	// Setting is the flag that names the file, such as auth-file. It is a label of the
	// metrics and a field of the log.
	Setting  string
	MaxBytes int64
	Metrics  *Metrics
	Log      zerolog.Logger
}

// Parser parses the content of a file. It also receives the current value, nil at first, so
// that the new value can reuse parts of it. Unless it returns an error, its result becomes
// the current value; it may return the current value if nothing has changed. It must not
// keep data.
type Parser[T any] func(data []byte, current *T) (*T, error)

// multiFile is implemented by values that were also made from further files, which are
// watched too.
type multiFile interface{ Files() []string }

// File is a file and the value made from it.
type File[T any] struct {
	path    string
	parse   Parser[T]
	o       Options
	current atomic.Pointer[T]

	mu       sync.Mutex // held during a reload, including its calls of onChange
	onChange []func(old, new *T)
	sum      [sha256.Size]byte // of the content of the current value
	seen     fileStates        // of the files when they were last read; nil: read again at each check
	problem  string            // of the last reload
}

// Load reads a file for the first time.
func Load[T any](path string, parse Parser[T], o Options) (*File[T], error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = MaxBytes
	}
	o.Log = o.Log.With().Str("setting", o.Setting).Str("path", path).Logger()
	f := &File[T]{path: path, parse: parse, o: o}
	if _, err := f.renew(); err != nil {
		return nil, err
	}
	return f, nil
}

// Current returns the current value. It is never nil, unless the parser returned nil.
func (f *File[T]) Current() *T { return f.current.Load() }

// OnChange registers g to be called after each change of the current value. Functions are
// called one at a time, in the order of registration, when Current already returns the new
// value. Writing a file again with the same content is not a change. g must not call Reload
// or OnChange.
func (f *File[T]) OnChange(g func(old, new *T)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onChange = append(f.onChange, g)
}

// Reload reads the file. If it is invalid, the current value stays, and Reload logs and
// returns the error. It returns after the calls of the functions of OnChange.
func (f *File[T]) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reload(true) // log even if nothing has changed
}

// reload reads the file and logs the result. Without always it logs only changes: not the
// same error twice in a row, and no success without a new version after a success. The lock
// must be held.
func (f *File[T]) reload(always bool) error {
	before := f.problem
	changed, err := f.renew()
	switch {
	case err != nil:
		if always || f.problem != before {
			f.o.Log.Warn().Err(err).Msg("invalid file, keeping the previous version")
		}
		return err
	case changed:
		f.o.Log.Info().Msg("file read, new version applied")
	case always, before != "":
		f.o.Log.Info().Msg("file read, no change")
	}
	return nil
}

// renew reads and parses the file. The lock must be held, unless the File is not shared yet.
func (f *File[T]) renew() (changed bool, err error) {
	further := statesOf(f.extraFiles())
	data, seen, err := read(f.path, f.o.MaxBytes)
	f.seen = append(fileStates{seen}, further...)
	if err == nil {
		changed, err = f.apply(data)
	}
	if err != nil {
		if _, more := any(f.current.Load()).(multiFile); more {
			f.seen = nil
		}
		f.problem = err.Error()
		f.o.Metrics.failed(f.o.Setting)
		return false, fmt.Errorf("reading --%s: %w", f.o.Setting, err)
	}
	f.problem = ""
	f.o.Metrics.succeeded(f.o.Setting, seen.at)
	return changed, nil
}

// apply parses data and makes the result the current value.
func (f *File[T]) apply(data []byte) (changed bool, err error) {
	sum := sha256.Sum256(data)
	old := f.current.Load()
	if old != nil && sum == f.sum && len(f.extraFiles()) == 0 {
		return false, nil
	}
	value, err := f.parse(data, old)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.path, err)
	}
	f.sum = sum
	if value == old {
		return false, nil
	}
	f.current.Store(value)
	for _, g := range f.onChange {
		g(old, value)
	}
	return true, nil
}

// extraFiles returns the further files from which the current value was made.
func (f *File[T]) extraFiles() []string {
	if value := f.current.Load(); value != nil {
		if m, ok := any(value).(multiFile); ok {
			return m.Files()
		}
	}
	return nil
}
