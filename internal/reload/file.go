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

// Options are the options of a File. All but Setting are optional.
type Options struct {
	// Setting is the flag that names the file, such as auth-file. It is a label of the
	// metrics and a field of the log.
	Setting  string
	MaxBytes int64
	Metrics  *Metrics
	Log      zerolog.Logger
}

// Parser makes a value from the content of a file. It also gets the current value, nil
// at first, so that the new one can take over a part of it. Unless it returns an error,
// its value becomes the current one; it may return the current one where nothing has
// changed. It must not keep data.
type Parser[T any] func(data []byte, current *T) (*T, error)

// madeOf is a value that was made from further files too. They are watched as well.
type madeOf interface{ Files() []string }

// File is a file and the value made from it.
type File[T any] struct {
	path    string
	parse   Parser[T]
	o       Options
	current atomic.Pointer[T]

	mu       sync.Mutex // held through a reload, its calls of onChange included
	onChange []func(old, new *T)
	sum      [sha256.Size]byte // of the content of the current value
	seen     looks             // when the files were last read; nil: a further one may be bad
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

// OnChange registers g to be called after each change of the current value, one call
// at a time, in the order of registration. A file that was written again with the same
// content is no change. Current already returns the new value. g must not call Reload
// or OnChange.
func (f *File[T]) OnChange(g func(old, new *T)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onChange = append(f.onChange, g)
}

// Reload reads the file. If it is invalid, the current value stays, and the error has
// been logged. Reload returns after the calls of OnChange.
func (f *File[T]) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reload(true)
}

// reload needs the lock. Without aloud it does not log the same error twice in a row.
func (f *File[T]) reload(aloud bool) error {
	before := f.problem
	changed, err := f.renew()
	switch {
	case err != nil:
		if aloud || f.problem != before {
			f.o.Log.Warn().Err(err).Msg("invalid file, keeping the previous version")
		}
		return err
	case changed:
		f.o.Log.Info().Msg("file read, new version applied")
	case aloud, before != "":
		f.o.Log.Info().Msg("file read, no change")
	}
	return nil
}

// renew reads and parses the file. It needs the lock, or a File that is not shared yet.
func (f *File[T]) renew() (changed bool, err error) {
	further := looksAt(f.further())
	data, seen, err := read(f.path, f.o.MaxBytes)
	f.seen = append(looks{seen}, further...)
	if err == nil {
		changed, err = f.adopt(data)
	}
	if err != nil {
		if _, more := any(f.current.Load()).(madeOf); more {
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

// adopt makes the value of data the current one.
func (f *File[T]) adopt(data []byte) (changed bool, err error) {
	sum := sha256.Sum256(data)
	old := f.current.Load()
	if old != nil && sum == f.sum && len(f.further()) == 0 {
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

// further returns the other files that the current value was made from.
func (f *File[T]) further() []string {
	if value := f.current.Load(); value != nil {
		if m, ok := any(value).(madeOf); ok {
			return m.Files()
		}
	}
	return nil
}
