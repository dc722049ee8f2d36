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

// Options is what a File needs besides its path. All but Setting may be left out.
type Options struct {
	// Setting is the flag that names the file, such as auth-file. It is the label
	// of the metrics and stands in the log.
	Setting  string
	MaxBytes int64
	Metrics  *Metrics
	Log      zerolog.Logger
}

// Parser makes the value of a file's bytes. It also gets the value in force, nil
// at first, for what the new one takes over from it; when Parser returns without
// an error, its value will be in force, or was already where nothing has changed. It
// must not keep data.
type Parser[T any] func(data []byte, inForce *T) (*T, error)

// madeOf is a value that its parser made of further files. They are watched as well.
type madeOf interface{ Files() []string }

// File is a file and the value made of it.
type File[T any] struct {
	path    string
	parse   Parser[T]
	o       Options
	current atomic.Pointer[T]

	mu       sync.Mutex // held through a reload, its calls of onChange included
	onChange []func(old, new *T)
	sum      [sha256.Size]byte // of what is in force
	seen     looks             // at the files when they were read last; nil: a further one may be bad
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

// Current gives the value in force. It is never nil, unless the parser made it so.
func (f *File[T]) Current() *T { return f.current.Load() }

// OnChange has g called after each change of the value in force, in order, one
// call at a time. A file that was written again with the same bytes is no change.
// Current gives the new value already. g must not call Reload or OnChange.
func (f *File[T]) OnChange(g func(old, new *T)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onChange = append(f.onChange, g)
}

// Reload reads the file. When it is bad the value in force stays; the error says
// why and was logged. Reload returns after the calls of OnChange.
func (f *File[T]) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reload(true)
}

// reload needs the lock. Without aloud it logs no reason twice in a row.
func (f *File[T]) reload(aloud bool) error {
	before := f.problem
	changed, err := f.renew()
	switch {
	case err != nil:
		if aloud || f.problem != before {
			f.o.Log.Warn().Err(err).Msg("the file is bad: what was read before stays in force")
		}
		return err
	case changed:
		f.o.Log.Info().Msg("the file was read and is in force")
	case aloud, before != "":
		f.o.Log.Info().Msg("the file was read and says what is in force")
	}
	return nil
}

// renew needs the lock, or a File nobody else has.
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

// adopt puts the value of data in force.
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

// further are the files that the value in force was made of besides its own.
func (f *File[T]) further() []string {
	if value := f.current.Load(); value != nil {
		if m, ok := any(value).(madeOf); ok {
			return m.Files()
		}
	}
	return nil
}
