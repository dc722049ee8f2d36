// SPDX-License-Identifier: Apache-2.0

package reload

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/regular"
)

// text is a value that says what it was read from.
type text struct{ s string }

var errBad = errors.New("it is bad")

// rig is a File of text with its surroundings. A text with "bad" in it is bad.
type rig struct {
	*File[text]

	path string
	reg  *prometheus.Registry

	mu  sync.Mutex // for the goroutine that watches
	log bytes.Buffer
	got []string // what the parser was given
}

// Write is for the log.
func (r *rig) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *rig) parse(data []byte, _ *text) (*text, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, string(data))
	if strings.Contains(string(data), "bad") {
		return nil, errBad
	}
	return &text{string(data)}, nil
}

func (r *rig) parsed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func newRig(t *testing.T, path string) *rig {
	t.Helper()
	r := &rig{path: path, reg: prometheus.NewRegistry()}
	f, err := Load(path, r.parse, Options{Setting: "some-file", Metrics: NewMetrics("x_", r.reg), Log: zerolog.New(r)})
	require.NoError(t, err)
	r.File = f
	return r
}

// good gives the gauge.
func (r *rig) good(t *testing.T) bool {
	t.Helper()
	return gauge(t, r.reg, "x_config_last_reload_successful") == 1
}

func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			require.Len(t, f.GetMetric(), 1)
			require.Equal(t, `name:"file" value:"some-file"`, strings.Join(strings.Fields(f.GetMetric()[0].GetLabel()[0].String()), " "))
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(t, "no gauge", name)
	return 0
}

// logged gives the lines since the last call.
func (r *rig) logged() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.log.Reset()
	return slices.Collect(strings.Lines(r.log.String()))
}

func write(t *testing.T, path, s string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(s), 0o600))
}

func newPath(t *testing.T, s string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, s)
	return path
}

func TestABadFileKeepsTheOldOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, newPath(t, "one"))
	require.Equal(t, "one", r.Current().s)
	require.True(t, r.good(t))
	first := gauge(t, r.reg, "x_config_last_reload_success_timestamp_seconds")
	require.Greater(t, first, 1e9)

	kept := r.Current()
	for _, bad := range []func(){
		func() { write(t, r.path, "bad") },
		func() { require.NoError(t, os.Remove(r.path)) },
		func() { require.NoError(t, os.Mkdir(r.path, 0o700)) },
	} {
		bad()
		err := r.Reload()
		require.ErrorContains(t, err, "reading --some-file: ")
		require.ErrorContains(t, err, r.path)
		require.Same(t, kept, r.Current())
		require.False(t, r.good(t))
		require.InDelta(t, first, gauge(t, r.reg, "x_config_last_reload_success_timestamp_seconds"), 0)
		lines := r.logged()
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], "keeping the previous version")
	}
	require.ErrorIs(t, r.Reload(), regular.ErrNot)

	require.NoError(t, os.Remove(r.path))
	write(t, r.path, "two")
	require.NoError(t, r.Reload())
	require.Equal(t, "two", r.Current().s)
	require.True(t, r.good(t))
	require.GreaterOrEqual(t, gauge(t, r.reg, "x_config_last_reload_success_timestamp_seconds"), first)
}

func TestTheFirstFileMustBeGood(t *testing.T) {
	t.Parallel()
	parse := func([]byte, *text) (*text, error) { return nil, errBad }
	_, err := Load(newPath(t, "x"), parse, Options{Setting: "some-file"})
	require.ErrorIs(t, err, errBad)
	_, err = Load(filepath.Join(t.TempDir(), "none"), parse, Options{Setting: "some-file"})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Load(newPath(t, "123456"), parse, Options{Setting: "some-file", MaxBytes: 5})
	require.ErrorIs(t, err, errTooLarge)

	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err = Load(pipe, parse, Options{Setting: "some-file"})
	require.ErrorIs(t, err, regular.ErrNot, "it does not wait for a writer")
}

func TestAFileOfTheLargestSizeIsRead(t *testing.T) {
	t.Parallel()
	f, err := Load(newPath(t, "12345"), func(data []byte, _ *text) (*text, error) { return &text{string(data)}, nil },
		Options{Setting: "some-file", MaxBytes: 5})
	require.NoError(t, err)
	require.Equal(t, "12345", f.Current().s)
}

func TestChangesAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, newPath(t, "one"))
	var told []string
	for _, who := range []string{"a", "b"} {
		r.OnChange(func(old, new *text) {
			require.Same(t, new, r.Current(), "it is in force already")
			told = append(told, who+": "+old.s+" to "+new.s)
		})
	}
	require.NoError(t, r.Reload(), "the same bytes are no change")
	write(t, r.path, "bad")
	require.Error(t, r.Reload())
	require.Empty(t, told)
	write(t, r.path, "two")
	require.NoError(t, r.Reload())
	write(t, r.path, "one")
	require.NoError(t, r.Reload())
	require.Equal(t, []string{"a: one to two", "b: one to two", "a: two to one", "b: two to one"}, told)
}

// After a bad file the old bytes are good again, though nothing changes.
func TestTheOldBytesEndTheProblem(t *testing.T) {
	t.Parallel()
	r := newRig(t, newPath(t, "one"))
	kept := r.Current()
	write(t, r.path, "bad")
	require.ErrorIs(t, r.Reload(), errBad)
	write(t, r.path, "one")
	require.NoError(t, r.Reload())
	require.Same(t, kept, r.Current())
	require.True(t, r.good(t))
}

func TestTheParserGetsWhatIsInForce(t *testing.T) {
	t.Parallel()
	path := newPath(t, "1")
	f, err := Load(path, func(data []byte, inForce *text) (*text, error) {
		if inForce == nil {
			return &text{string(data)}, nil
		}
		return &text{inForce.s + string(data)}, nil
	}, Options{Setting: "some-file"})
	require.NoError(t, err)
	write(t, path, "2")
	require.NoError(t, f.Reload())
	require.Equal(t, "12", f.Current().s)
}

func TestReloadsRunOneAtATime(t *testing.T) {
	t.Parallel()
	path := newPath(t, "0")
	f, err := Load(path, func(data []byte, _ *text) (*text, error) { return &text{string(data)}, nil }, Options{Setting: "some-file"})
	require.NoError(t, err)
	last := f.Current() // guarded by the File, which the race detector checks
	changes := 0
	f.OnChange(func(old, new *text) {
		require.Same(t, last, old)
		last = new
		changes++
	})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				tmp := fmt.Sprintf("%s.%d", path, g)
				if os.WriteFile(tmp, fmt.Appendf(nil, "%d %d", g, i), 0o600) != nil || os.Rename(tmp, path) != nil {
					t.Error("writing the file")
				}
				if err := f.Reload(); err != nil {
					t.Error(err)
				}
				if f.Current().s == "" {
					t.Error("half a file")
				}
			}
		})
	}
	wg.Wait()
	require.Same(t, last, f.Current())
	require.GreaterOrEqual(t, changes, 50)
}

func TestTheMetricsAreWellFormed(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := NewMetrics("hivenet_", reg)
	m.failed("a-file")
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}
