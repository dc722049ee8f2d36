// SPDX-License-Identifier: Apache-2.0

package extproctest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/holdgate/holdgate/envoy"
)

// Exchange is one ext_proc stream from Envoy's side. It lives in a bubble of
// testing/synctest.
type Exchange struct {
	Stream extprocv3.ExternalProcessor_ProcessClient
	Reset  context.CancelFunc
	Begin  time.Time

	describe func(*extprocv3.ProcessingResponse) string
	done     chan struct{}

	mu     sync.Mutex
	events []string
	got    []*extprocv3.ProcessingResponse
	err    error // how the server ended the stream
}

// Open begins a stream of a lane, which is empty for a gateway. describe names
// the messages that are received.
func Open(t testing.TB, conn grpc.ClientConnInterface, lane string, describe func(*extprocv3.ProcessingResponse) string) *Exchange {
	t.Helper()
	x := Mute(t, conn, lane)
	x.describe = describe
	go x.receive()
	return x
}

// Mute begins a stream of an Envoy that does not read.
func Mute(t testing.TB, conn grpc.ClientConnInterface, lane string) *Exchange {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if lane != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, envoy.LaneMetadata, lane)
	}
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	require.NoError(t, err)
	return &Exchange{Stream: stream, Reset: cancel, Begin: time.Now(), done: make(chan struct{})}
}

func (x *Exchange) receive() {
	defer close(x.done)
	defer x.Reset()
	for {
		m, err := x.Stream.Recv()
		x.mu.Lock()
		if err != nil {
			x.err = err
			x.mu.Unlock()
			return
		}
		x.got = append(x.got, m)
		x.events = append(x.events, fmt.Sprintf("%v %s", time.Since(x.Begin), x.describe(m)))
		x.mu.Unlock()
	}
}

// Send sends messages.
func (x *Exchange) Send(ms ...*extprocv3.ProcessingRequest) {
	for _, m := range ms {
		_ = x.Stream.Send(m) // an error is what Recv gives too
	}
}

// Events returns everything that was received, with its time.
func (x *Exchange) Events() []string {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.events)
}

// Messages returns all messages that were received.
func (x *Exchange) Messages() []*extprocv3.ProcessingResponse {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.got)
}

// End waits for the end of the stream that the server makes.
func (x *Exchange) End() error {
	select {
	case <-x.done:
	case <-time.After(48 * time.Hour):
		return errors.New("the stream has no end")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// RequireEnded demands these events and an end without an error.
func (x *Exchange) RequireEnded(t testing.TB, want ...string) {
	t.Helper()
	require.ErrorIs(t, x.End(), io.EOF)
	require.Equal(t, want, x.Events())
}
