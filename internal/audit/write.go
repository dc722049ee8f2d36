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

// gather adds the lines that wait, so that a busy log needs few writes and no line
// of an idle one waits for company.
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

// flush writes whole lines. What could not be written is lost.
func (l *Log) flush(batch []byte) {
	if l.torn.Load() {
		// Half a line stands at the end, of a disk that was full: the next one must
		// not continue it.
		if _, err := l.sink.Write([]byte{'\n'}); err == nil {
			l.torn.Store(false)
		}
	}
	n, err := l.sink.Write(batch)
	if err == nil {
		if l.failing {
			l.failing = false
			l.log.Info().Uint64("dropped", l.Dropped()).Msg("the audit log can be written again")
		}
		return
	}
	if n > 0 {
		l.torn.Store(batch[n-1] != '\n')
	}
	l.dropped.Add(uint64(bytes.Count(batch[n:], []byte{'\n'}))) //nolint:gosec // a count
	if !l.failing {
		l.failing = true
		l.log.Error().Err(err).Msg("the audit log cannot be written")
	}
}
