// SPDX-License-Identifier: Apache-2.0

// Package descriptors is about the file descriptors that a process may have: how many
// there are, and what to do when they are used up. That says nothing of the other side
// of a connection that could not be made.
package descriptors

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limit is how many descriptors this process may have.
func Limit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<30))
}

// UsedUp says whether an error is of a descriptor that this process, or the system,
// could not have.
func UsedUp(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// The pause between two tries.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Patient makes a client's transport that tries again, until the request's context
// ends, while there is no descriptor for a connection. Requests with a body need GetBody.
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

// pause waits, and reports false when ctx ended before.
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

// again is a request like r, whose body was closed by a try that failed.
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
