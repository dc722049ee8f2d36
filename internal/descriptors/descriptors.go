// SPDX-License-Identifier: Apache-2.0

// Package descriptors returns how many file descriptors this process may have, and retries
// calls while there is none for a connection: that is no failure of the other side.
package descriptors

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limit returns how many descriptors this process may have.
func Limit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<30))
}

// UsedUp reports whether an error means that this process, or the system, has no descriptor
// left.
func UsedUp(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// The pauses between tries grow from the first to the last.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Patient returns a transport for a client that tries again while there is no descriptor for
// a connection, until the context of the request ends. Requests with a body need GetBody.
func Patient(next http.RoundTripper) http.RoundTripper { return patient{next} }

type patient struct{ next http.RoundTripper }

// RoundTrip is part of http.RoundTripper.
func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		resp, err := p.next.RoundTrip(r)
		if err == nil || !UsedUp(err) {
			return resp, err
		}
		if !pause(r.Context(), wait) {
			return nil, err
		}
		if r, err = again(r); err != nil {
			return nil, err
		}
	}
}

// pause waits for d, and reports false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// again returns a copy of r for another try, with a new body: the failed try has closed it.
func again(r *http.Request) (*http.Request, error) {
	next := *r
	if r.Body == nil || r.Body == http.NoBody {
		return &next, nil
	}
	if r.GetBody == nil {
		return nil, errors.New("trying again: the request's body cannot be had twice")
	}
	var err error
	next.Body, err = r.GetBody()
	return &next, err
}
