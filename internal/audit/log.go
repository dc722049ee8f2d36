// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
)

const (
	defaultMaxMiB = 100
	defaultQueue  = 4096 // lines
	batchBytes    = 64 << 10
	lineBytes     = 1 << 10 // size of a new buffer; usual lines fit
	spareBytes    = 4 << 10 // larger buffers are not reused
)

// ErrClosed is the error of a log that was closed.
var ErrClosed = errors.New("the audit log is closed")

// Options are the options of a log.
type Options struct {
	MaxMiB     int       // a file's size at which it is rotated; 0: 100
	Backups    int       // rotated files that are kept; 0: all
	Queue      int       // lines that may wait to be written; 0: 4096
	Stdout     io.Writer // used for the path "-"; nil: os.Stdout
	Registerer prometheus.Registerer
	Prefix     string // of the metric's name
	Log        zerolog.Logger
}

// sink is the destination of the lines.
type sink interface {
	io.Writer
	// Reopen closes the file, which may have been renamed, and opens its path again.
	Reopen() error
	// Torn reports whether the file ended in an incomplete line when it was opened, because
	// an earlier process was killed or the disk was full.
	Torn() bool
	Close() error
}

// Log writes records. Its methods are safe for concurrent use.
type Log struct {
	log     zerolog.Logger
	sink    sink // nil if the log writes nothing
	dropped atomic.Uint64

	mu     sync.RWMutex // held for reading while a line is queued
	closed bool
	lines  chan []byte
	spare  chan []byte // buffers of lines that were written
	done   chan struct{}

	torn    atomic.Bool // the file ends in an incomplete line
	failing bool        // the last write failed; only the writer's goroutine uses it
}

// Open opens a log that writes to path: a file, or "-" for standard output. With an empty
// path the log writes nothing.
func Open(path string, o Options) (*Log, error) {
	if o.MaxMiB < 0 || o.Backups < 0 || o.Queue < 0 {
		return nil, errors.New("opening the audit log: no setting may be below 0")
	}
	l := &Log{log: o.Log, closed: path == ""}
	if path != "" {
		var err error
		if l.sink, err = openSink(path, o); err != nil {
			return nil, fmt.Errorf("opening the audit log: %w", err)
		}
		l.torn.Store(l.sink.Torn())
		l.start(o.Queue)
	}
	promauto.With(o.Registerer).NewCounterFunc(prometheus.CounterOpts{
		Name: o.Prefix + "audit_dropped_total",
		Help: "Audit records that were lost, because the queue was full or the file could not be written.",
	}, func() float64 { return float64(l.Dropped()) })
	return l, nil
}

func openSink(path string, o Options) (sink, error) {
	if path != "-" {
		return openFile(path, o)
	}
	if o.Stdout != nil {
		return stream{o.Stdout}, nil
	}
	return stream{os.Stdout}, nil
}

func (l *Log) start(queue int) {
	if queue == 0 {
		queue = defaultQueue
	}
	l.lines, l.spare, l.done = make(chan []byte, queue), make(chan []byte, queue), make(chan struct{})
	go l.write()
}

// Write queues the line of a record. It does not wait: if the queue is full, or the log is
// closed, the record is dropped and counted. The caller may change the record afterwards.
func (l *Log) Write(r *Record) {
	if l.sink == nil {
		return
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		l.dropped.Add(1)
		return
	}
	b := r.appendLine(l.buffer())
	select {
	case l.lines <- b:
	default:
		l.dropped.Add(1)
		l.recycle(b)
	}
}

func (l *Log) buffer() []byte {
	select {
	case b := <-l.spare:
		return b[:0]
	default:
		return make([]byte, 0, lineBytes)
	}
}

func (l *Log) recycle(b []byte) {
	if cap(b) > spareBytes {
		return
	}
	select {
	case l.spare <- b:
	default:
	}
}

// Dropped returns how many records were dropped.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Reopen opens the log's path again, after another program has renamed the file. Lines that
// were queued before may be written to either file.
func (l *Log) Reopen() error {
	if l.sink == nil {
		return nil
	}
	if err := l.sink.Reopen(); err != nil {
		return fmt.Errorf("reopening the audit log: %w", err)
	}
	l.torn.Store(l.sink.Torn())
	return nil
}

// Close writes the queued lines and closes the file. Calls after the first do nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	close(l.lines)
	l.mu.Unlock()
	<-l.done
	if err := l.sink.Close(); err != nil {
		return fmt.Errorf("closing the audit log: %w", err)
	}
	return nil
}
