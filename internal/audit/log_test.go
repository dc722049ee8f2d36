// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func open(t testing.TB, path string, o Options) *Log {
	t.Helper()
	l, err := Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// numbered is a record that can be told from others.
func numbered(n int) *Record { return &Record{RequestID: fmt.Sprint("request ", n), Model: "llama"} }

// ids reads the numbers of the lines in text, each of which must be whole.
func ids(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(text) {
		require.True(t, strings.HasSuffix(line, "}\n"), "%q", line)
		all = append(all, decoded(t, []byte(line))["request_id"].(string))
	}
	return all
}

func requests(from, to int) []string {
	var all []string
	for n := from; n < to; n++ {
		all = append(all, fmt.Sprint("request ", n))
	}
	return all
}

// gate is a writer that says when it is written to, and waits until it may go on.
type gate struct {
	bytes.Buffer

	came, goOn chan struct{}
	sizes      []int // of each write
}

func newGate() *gate { return &gate{came: make(chan struct{}, 1), goOn: make(chan struct{})} }

func (g *gate) Write(p []byte) (int, error) {
	select {
	case g.came <- struct{}{}:
	default:
	}
	<-g.goOn
	g.sizes = append(g.sizes, len(p))
	return g.Buffer.Write(p)
}

func TestLinesComeInOrderAndNoneIsLostAtTheEnd(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := open(t, "-", Options{Stdout: &out})
	for n := range 3000 {
		r := numbered(n)
		l.Write(r)
		r.RequestID = "used again"
	}
	require.NoError(t, l.Close())
	require.Equal(t, requests(0, 3000), ids(t, out.String()))
	require.Zero(t, l.Dropped())
	require.NoError(t, l.Close(), "again")

	l.Write(numbered(1))
	require.Equal(t, uint64(1), l.Dropped(), "after the end")
	require.NoError(t, l.Reopen(), "stdout has no name")
}

func TestAFullQueueDropsAndCounts(t *testing.T) {
	t.Parallel()
	out := newGate()
	reg := prometheus.NewPedanticRegistry()
	l := open(t, "-", Options{Stdout: out, Queue: 3, Registerer: reg, Prefix: "hivenet_"})
	l.Write(numbered(0))
	<-out.came // the writer is stuck with it
	for n := 1; n < 10; n++ {
		l.Write(numbered(n))
	}
	require.Equal(t, uint64(6), l.Dropped())
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP hivenet_audit_dropped_total Audit records that were lost, because the queue was full or the file could not be written.
# TYPE hivenet_audit_dropped_total counter
hivenet_audit_dropped_total 6
`)))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)

	close(out.goOn)
	require.NoError(t, l.Close())
	require.Equal(t, requests(0, 4), ids(t, out.String()))
	require.Equal(t, uint64(6), l.Dropped())
}

// TestABusyLogWritesManyLinesAtOnce so that it needs few calls of the kernel.
func TestABusyLogWritesManyLinesAtOnce(t *testing.T) {
	t.Parallel()
	out := newGate()
	l := open(t, "-", Options{Stdout: out})
	l.Write(numbered(0))
	<-out.came
	for n := 1; n < 100; n++ {
		l.Write(numbered(n))
	}
	close(out.goOn)
	require.NoError(t, l.Close())
	require.Len(t, out.sizes, 2, "the second write has all the rest")
	require.Equal(t, requests(0, 100), ids(t, out.String()))
}

// TestABatchIsBounded, for the file's library refuses a write above the file's size.
func TestABatchIsBounded(t *testing.T) {
	t.Parallel()
	out := newGate()
	l := open(t, "-", Options{Stdout: out})
	nasty := strings.Repeat("\x00", 300)
	r := &Record{RequestID: nasty, ClientRequestID: nasty, Model: nasty, Path: nasty, KeyID: nasty}
	l.Write(r)
	<-out.came
	for range 999 {
		l.Write(r)
	}
	close(out.goOn)
	require.NoError(t, l.Close())
	require.Equal(t, 1000, strings.Count(out.String(), "\n"))
	require.Greater(t, slices.Max(out.sizes), batchBytes)
	require.Less(t, slices.Max(out.sizes), batchBytes+len(r.appendLine(nil)))
}

func TestWithoutAPathNothingIsWritten(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	l := open(t, "", Options{Registerer: reg, Prefix: "x_"})
	l.Write(full())
	require.NoError(t, l.Reopen())
	require.NoError(t, l.Close())
	l.Write(full())
	require.Zero(t, l.Dropped(), "it was not meant to be kept")
	n, err := testutil.GatherAndCount(reg, "x_audit_dropped_total")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestBadSettings(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{MaxMiB: -1}, {Backups: -1}, {Queue: -1}} {
		_, err := Open("-", o)
		require.EqualError(t, err, "opening the audit log: no setting may be below 0")
	}
}

// TestWritersRaceTheEnd: every record is either in the log or counted.
func TestWritersRaceTheEnd(t *testing.T) {
	t.Parallel()
	for range 20 {
		var out bytes.Buffer
		l, err := Open("-", Options{Stdout: &out, Queue: 50})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for n := range 200 {
					l.Write(numbered(n))
				}
			})
		}
		wg.Go(func() { require.NoError(t, l.Close()) })
		wg.Go(func() { require.NoError(t, l.Reopen()) })
		require.NoError(t, l.Close())
		wg.Wait()
		require.Equal(t, 800, len(ids(t, out.String()))+int(l.Dropped()))
	}
}

// fullDisk takes so many bytes and then none.
type fullDisk struct {
	bytes.Buffer

	room int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	if len(p) > d.room {
		n, _ := d.Buffer.Write(p[:d.room])
		d.room = 0
		return n, errors.New("no space left on device")
	}
	d.room -= len(p)
	return d.Buffer.Write(p)
}

// TestAFullDiskCostsLinesButNoOthers calls the writer's own steps, in one goroutine.
func TestAFullDiskCostsLinesButNoOthers(t *testing.T) {
	t.Parallel()
	one := numbered(0).appendLine(nil)
	var logged bytes.Buffer
	disk := &fullDisk{room: len(one) + 10}
	l := &Log{sink: stream{disk}, log: zerolog.New(&logged)}
	batch := numbered(0).appendLine(nil)
	for n := 1; n < 4; n++ {
		batch = numbered(n).appendLine(batch)
	}
	l.flush(batch)
	require.Equal(t, uint64(3), l.Dropped(), "one was written whole")
	l.flush(one)
	l.flush(one)
	require.Equal(t, uint64(5), l.Dropped())
	require.Equal(t, 1, strings.Count(logged.String(), "\n"), "said once")
	require.Contains(t, logged.String(), `"error":"no space left on device"`)

	disk.room = 1 << 20
	l.flush(numbered(7).appendLine(nil))
	l.flush(numbered(8).appendLine(nil))
	require.Equal(t, uint64(5), l.Dropped())
	require.Equal(t, 2, strings.Count(logged.String(), "\n"))
	require.Contains(t, logged.String(), "can be written again")
	lines := strings.SplitAfter(disk.String(), "\n")
	require.Len(t, lines, 5)
	require.Equal(t, string(one[:10])+"\n", lines[1], "the broken line is alone")
	require.Equal(t, []string{"request 0", "request 7", "request 8"}, ids(t, lines[0]+lines[2]+lines[3]))
}

// Room for a few bytes comes and goes: what is written then is broken, and alone too.
func TestADiskThatIsFullAgainAtOnce(t *testing.T) {
	t.Parallel()
	one := numbered(0).appendLine(nil)
	disk := &fullDisk{room: 10}
	l := &Log{sink: stream{disk}, log: zerolog.Nop()}
	l.flush(one)
	for _, room := range []int{0, 1, 3} {
		disk.room = room
		l.flush(one)
	}
	require.Equal(t, uint64(4), l.Dropped())
	disk.room = 1 << 20
	l.flush(one)
	require.Equal(t, string(one[:10])+"\n"+string(one[:3])+"\n"+string(one), disk.String())
}

// TestWriteAllocatesNothing runs alone: allocations are counted for the process.
func TestWriteAllocatesNothing(t *testing.T) {
	l := open(t, "-", Options{Stdout: io.Discard, Queue: 64})
	r := full()
	r.Model = "nasty \x00 \xff" + strings.Repeat("é", 200)
	for range 10_000 { // the buffers that there may be
		l.Write(r)
	}
	require.Zero(t, testing.AllocsPerRun(5000, func() { l.Write(r) }))
}

func BenchmarkWrite(b *testing.B) {
	b.ReportAllocs()
	l := open(b, "-", Options{Stdout: io.Discard})
	r := full()
	for b.Loop() {
		l.Write(r)
	}
}

func BenchmarkLine(b *testing.B) {
	b.ReportAllocs()
	r := full()
	var buf []byte
	for b.Loop() {
		buf = r.appendLine(buf[:0])
	}
}
