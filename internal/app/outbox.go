// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/internal/takeover"
)

const (
	// messagesKept is how many messages to another process may be queued.
	messagesKept = 4096
	// entriesAtOnce limits a message with log entries.
	entriesAtOnce = 256
)

// outbox queues messages to another process. It drops them while there is none.
type outbox struct {
	out     chan *takeover.Message
	open    atomic.Bool // there is such a process
	logger  zerolog.Logger
	dropped sync.Once
}

func newOutbox(log zerolog.Logger) *outbox {
	return &outbox{out: make(chan *takeover.Message, messagesKept), logger: log}
}

// queue queues a message. It does not block.
func (b *outbox) queue(m *takeover.Message) {
	if !b.open.Load() {
		return
	}
	select {
	case b.out <- m:
	default:
		b.dropped.Do(func() { b.logger.Error().Msg("log entries for another process are lost: it does not read them") })
	}
}

// log queues a log entry.
func (b *outbox) log(e *wire.LogEntry) {
	if b.open.Load() {
		b.queue(&takeover.Message{Entries: &takeover.Entries{List: []wire.LogEntry{*e}}})
	}
}

// send sends the queued messages until ctx ends or the other process has ended. When ctx ends, it
// sends those that are queued.
func (b *outbox) send(ctx context.Context, conn *takeover.Conn) {
	defer b.open.Store(false)
	for {
		var m *takeover.Message
		select {
		case m = <-b.out:
		default:
			select {
			case m = <-b.out:
			case <-ctx.Done():
				return
			}
		}
		if next := b.join(m); conn.Send(m) != nil || next != nil && conn.Send(next) != nil {
			_ = conn.Close() // whoever receives notices
			return
		}
	}
}

// join adds to a message of log entries those that are queued behind it. It returns the message
// that ended that and is not a part of it, or nil.
func (b *outbox) join(m *takeover.Message) (next *takeover.Message) {
	for m.Entries != nil && len(m.Entries.List) < entriesAtOnce {
		select {
		case next = <-b.out:
		default:
			return nil
		}
		if next.Entries == nil {
			return next
		}
		m.Entries.List = append(m.Entries.List, next.Entries.List...)
	}
	return nil
}
