// SPDX-License-Identifier: Apache-2.0

package descriptors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// short fails so many times for want of a descriptor, as a dial does.
type short struct {
	tries int
	why   error
	times []time.Duration
	begin time.Time
	body  string
}

func (s *short) RoundTrip(r *http.Request) (*http.Response, error) {
	s.times = append(s.times, time.Since(s.begin))
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	if s.tries--; s.tries >= 0 {
		return nil, fmt.Errorf("calling: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", s.why)})
	}
	s.body = string(body)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestACallWaitsForADescriptor(t *testing.T) {
	t.Parallel()
	for _, why := range []error{syscall.EMFILE, syscall.ENFILE} {
		synctest.Test(t, func(t *testing.T) {
			s := &short{tries: 3, why: why, begin: time.Now()}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://relay", strings.NewReader("whole"))
			require.NoError(t, err)
			resp, err := Patient(s).RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, []time.Duration{0, 10 * time.Millisecond, 30 * time.Millisecond, 70 * time.Millisecond}, s.times)
			require.Equal(t, "whole", s.body, "the last try has the body too")
		})
	}
}

func TestNothingElseIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &short{tries: 1, why: syscall.ECONNREFUSED, begin: time.Now()}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://relay", http.NoBody)
		require.NoError(t, err)
		_, err = Patient(s).RoundTrip(r)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Len(t, s.times, 1)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s = &short{tries: 1 << 20, why: syscall.EMFILE, begin: time.Now()}
		_, err = Patient(s).RoundTrip(r.WithContext(ctx))
		require.True(t, UsedUp(err))
		require.Equal(t, time.Minute, time.Since(s.begin), "until its context ends")
	})
}
