// SPDX-License-Identifier: Apache-2.0

// Package descriptors returns the limit of this process's file descriptors, and retries HTTP
// requests while there is no descriptor for a connection, which is not a failure of the peer.
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

// UsedUp reports whether err means that this process or the system has no file descriptor
// left.
func UsedUp(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// The pause between tries doubles from firstPause up to lastPause.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Patient returns a transport that retries requests while there is no file descriptor for a
// connection, until the request's context ends. Requests with a body need GetBody.
func Patient(next http.RoundTripper) http.RoundTripper { return patient{next} }

type patient struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		resp, err := p.next.RoundTrip(r)
		if err == nil || !UsedUp(err) {
			return resp, err
		}
		if !pause(r.Context(), wait) {
			return nil, err
		}
		if r, err = retryRequest(r); err != nil {
			return nil, err
		}
	}
}

// pause waits for d. It returns false if ctx ends first.
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

// retryRequest returns a copy of r for another try. It has a new body, since the failed try
// has closed the first one.
func retryRequest(r *http.Request) (*http.Request, error) {
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
