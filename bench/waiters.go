// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// openAtOnce limits how many connections are opened concurrently.
const openAtOnce = 64

// waiter is a client whose request is held.
type waiter struct {
	conn   net.Conn
	reader *bufio.Reader
	head   time.Time // first byte of the head
	answer time.Time // first byte of the body after the keepalives
	want   []byte
}

// openWaiters sends n requests and does not wait for any answer.
func openWaiters(ctx context.Context, addr string, n, size int) ([]*waiter, error) {
	body, err := chatBody(size)
	if err != nil {
		return nil, err
	}
	request := rawRequest(body)
	waiters := make([]*waiter, n)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(openAtOnce)
	for i := range waiters {
		group.Go(func() error {
			conn, err := dial(groupCtx, addr)
			if err != nil {
				return err
			}
			// The reader is small: 5,000 of them are in one process.
			waiters[i] = &waiter{conn: conn, reader: bufio.NewReaderSize(conn, 2048), want: backendAnswer(int64(size))}
			if _, err := conn.Write(request); err != nil {
				return fmt.Errorf("sending a request: %w", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, closeWaiters(waiters))
	}
	return waiters, nil
}

func closeWaiters(waiters []*waiter) error {
	var errs []error
	for _, w := range waiters {
		if w != nil {
			errs = append(errs, w.conn.Close())
		}
	}
	return errors.Join(errs...)
}

// waitHead reads the head of the answer.
func (w *waiter) waitHead() (head, error) {
	if _, err := w.reader.Peek(1); err != nil {
		return head{}, fmt.Errorf("waiting for an answer: %w", err)
	}
	w.head = time.Now()
	h, err := readHead(w.reader)
	if err != nil {
		return head{}, err
	}
	if h.status != 200 {
		return head{}, fmt.Errorf("a waiter was answered %d, want 200", h.status)
	}
	return h, nil
}

// silent returns an error if anything has been sent to the waiter.
func (w *waiter) silent() error {
	if err := w.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return fmt.Errorf("setting a deadline: %w", err)
	}
	if _, err := w.reader.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(errors.New("a held request was not silent: -keepalive is too short"), err)
	}
	return nil
}

// waitAnswer reads the body past the keepalives and checks it.
func (w *waiter) waitAnswer(h head) error {
	source, err := h.body(w.reader)
	if err != nil {
		return err
	}
	first := make([]byte, 1)
	for w.answer.IsZero() {
		if _, err := io.ReadFull(source, first); err != nil {
			return fmt.Errorf("waiting for the body: %w", err)
		}
		// A request that is not streamed is kept alive by spaces, and a JSON answer
		// never begins with one.
		if first[0] != ' ' {
			w.answer = time.Now()
		}
	}
	rest, err := io.ReadAll(source)
	if err != nil {
		return fmt.Errorf("reading the body: %w", err)
	}
	if !bytes.HasPrefix(w.want, first) || !bytes.Equal(rest, w.want[1:]) {
		return fmt.Errorf("a waiter got %s%.200s, want %s", first, rest, w.want)
	}
	return nil
}

// sinceRegistration returns the time from begin to the first byte that the wake caused:
// the first of the head or, when a keepalive was sent before, of the body.
func (w *waiter) sinceRegistration(begin time.Time) time.Duration {
	if w.head.After(begin) {
		return w.head.Sub(begin)
	}
	return w.answer.Sub(begin)
}
