// SPDX-License-Identifier: Apache-2.0

package audit

import "bytes"

// write is the log's goroutine. It ends when the queue is closed and empty.
func (l *Log) write() {
	defer close(l.done)
	var batch []byte
	for b := range l.lines {
		batch = l.gather(append(batch[:0], b...), b)
		l.flush(batch)
	}
}

// gather appends the lines that are already queued to batch, so that a busy log needs few
// writes and an idle log writes a line at once. first is the buffer of the line in batch.
func (l *Log) gather(batch, first []byte) []byte {
	l.recycle(first)
	for len(batch) < batchBytes {
		select {
		case b, ok := <-l.lines:
			if !ok {
				return batch
			}
			batch = append(batch, b...)
			l.recycle(b)
		default:
			return batch
		}
	}
	return batch
}

// flush writes complete lines. Lines that cannot be written are dropped.
func (l *Log) flush(batch []byte) {
	head := 0
	if l.torn.Load() {
		// The newline that ends the incomplete line is part of the same write, so that the new
		// lines are never written without it.
		batch, head = append([]byte{'\n'}, batch...), 1
	}
	n, err := l.sink.Write(batch)
	if n > 0 {
		l.torn.Store(batch[n-1] != '\n')
	}
	if err == nil {
		if l.failing {
			l.failing = false
			l.log.Info().Uint64("dropped", l.Dropped()).Msg("the audit log can be written again")
		}
		return
	}
	l.dropped.Add(uint64(bytes.Count(batch[max(n, head):], []byte{'\n'}))) //nolint:gosec // a count
	if !l.failing {
		l.failing = true
		l.log.Error().Err(err).Msg("the audit log cannot be written")
	}
}
