// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"encoding/hex"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/extproc/wire"
)

var largeChunk = strings.Repeat(" ", 60_000)

// Over the limit for all bodies, reading pauses and nothing is refused.
func TestReadingPausesOverTheLimitForAllBodies(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		var all []*extproctest.Exchange
		headers := []string{":method", "POST", ":path", chatPath, "content-length", "1048576"}
		for range 6 { // the large ones have room for three
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, headers...))
			for range 5 {
				x.Send(extproctest.RequestBody(largeChunk, false))
			}
			all = append(all, x)
			synctest.Wait()
		}
		require.False(t, r.bodies.large.TryAcquire(1))
		// Small requests have their own.
		r.ask(t, extproctest.Request(chatPath, `{"model":"none"}`)).RequireEnded(t, `0s 404 {"error":{"code":"model_not_found","message":"model none does not exist here","source":"router"}}`)
		for _, x := range all {
			x.Send(extproctest.RequestBody(`{"model":"none"}`, true))
			x.RequireEnded(t, `0s 404 {"error":{"code":"model_not_found","message":"model none does not exist here","source":"router"}}`)
		}
	})
}

// A body that was only announced takes no memory, however many there are.
func TestIdleUploadsStandInNobodysWay(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		var idle []*extproctest.Exchange
		for range 100 {
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath, "content-length", "1048576"), extproctest.RequestBody("x", false))
			idle = append(idle, x)
		}
		x := r.open(t, envoy.LaneEdge)
		x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath))
		for range 10 {
			x.Send(extproctest.RequestBody(largeChunk, false))
		}
		x.Send(extproctest.RequestBody(`{"model":"none"}`, true))
		require.ErrorIs(t, x.End(), io.EOF)
		for _, x := range idle {
			x.Reset()
		}
	})
}

// Memory that stays taken ends the wait for it with an answer.
func TestMemoryThatStaysTakenIsNoCapacity(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		require.True(t, r.bodies.small.TryAcquire(maxTotal/4))
		require.True(t, r.bodies.large.TryAcquire(maxTotal-maxTotal/4))
		x := r.ask(t, chat(false))
		x.RequireEnded(t, `30s 503 {"error":{"code":"no_capacity","message":"the router holds too many request bodies; retry in 1 second","source":"router","retry_after":1}}`)
		r.bodies.small.Release(maxTotal / 4)
		r.bodies.large.Release(maxTotal - maxTotal/4)
	})
}

// Uploads of unknown length that together are over the limit must not wait for
// each other: each would have a part, and none enough.
func TestUploadsOfUnknownLengthDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		var all []*extproctest.Exchange
		for range 12 {
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath))
			all = append(all, x)
			go func() {
				for range 16 {
					x.Send(extproctest.RequestBody(largeChunk, false))
					<-time.After(time.Millisecond) // side by side
				}
				x.Send(extproctest.RequestBody(`{"model":"none"}`, true))
			}()
		}
		for _, x := range all {
			require.ErrorIs(t, x.End(), io.EOF)
			require.Len(t, x.Events(), 1)
		}
	})
}

// A body takes memory for its size, not for the size that it might have had.
func TestAHeldBodyCountsWithItsSize(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		x := r.open(t, envoy.LaneEdge)
		x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath))
		for range 10 {
			x.Send(extproctest.RequestBody(largeChunk, false))
		}
		x.Send(extproctest.RequestBody(`{"model":"m"}`, true))
		synctest.Wait()
		require.True(t, r.bodies.large.TryAcquire(maxTotal-maxTotal/4-600_013))
		require.False(t, r.bodies.large.TryAcquire(1))
		r.bodies.large.Release(maxTotal - maxTotal/4 - 600_013)
		x.Reset()
	})
}

func TestAClientMayLeaveWhileReadingPauses(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		require.True(t, r.bodies.small.TryAcquire(maxTotal/4))
		require.True(t, r.bodies.large.TryAcquire(maxTotal-maxTotal/4))
		for range 10 {
			x := r.ask(t, chat(false))
			require.Empty(t, x.Events())
			x.Reset()
			synctest.Wait()
			require.Zero(t, r.InFlight())
		}
		r.bodies.small.Release(maxTotal / 4)
		r.bodies.large.Release(maxTotal - maxTotal/4)
	})
}

// Swaps the package's pool, so nothing may run beside it.
func TestEveryBufferOfARequestComesBackOnce(t *testing.T) { //nolint:paralleltest // see above
	pool := &extproctest.CountingPool{}
	usual := wire.Buffers
	wire.Buffers = pool
	defer func() { wire.Buffers = usual }()
	long := append([]string{":method", "POST", ":path", chatPath, "x-long", strings.Repeat("x", 3000)}, headerRequestID)
	send := func(x *extproctest.Exchange, id, last string, end bool) {
		x.Send(extproctest.RequestHeaders(false, append(long, id)...), extproctest.RequestBody(largeChunk, false), extproctest.RequestBody(largeChunk, false), extproctest.RequestBody(largeChunk+last, end))
		if !end {
			x.Send(extproctest.RequestTrailers("x", largeChunk))
		}
		synctest.Wait()
	}
	const model = `{"model":"m"}`
	for name, c := range map[string]func(r *rig){
		"served": func(r *rig) {
			t := r.t
			r.slots.up(engineA, 1)
			id := uuid.NewString()
			x := r.open(t, envoy.LaneEdge)
			send(x, id, model, true)
			require.Len(t, x.Events(), 4)
			_ = x.Stream.CloseSend()
			require.ErrorIs(t, x.End(), io.EOF)
			r.endAllNow()
		},
		"served, with trailers": func(r *rig) {
			t := r.t
			r.slots.up(engineA, 1)
			x := r.open(t, envoy.LaneEdge)
			send(x, uuid.NewString(), model, false)
			require.Len(t, x.Events(), 1)
			x.Reset()
			r.endAllNow()
		},
		"relayed": func(r *rig) {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			send(x, uuid.NewString(), model, true)
			x.Send(extproctest.RequestBody(largeChunk, true))
			elapse(20 * time.Second)
			require.LessOrEqual(t, pool.OutNow(), 1, "while it waits only the headers stay in their buffer")
			r.slots.up(engineA, 1)
			call := r.engine.call(t, 1)
			require.Len(t, call.body, 3*len(largeChunk)+len(model))
			require.Len(t, call.Header.Get("X-Long"), 3000)
			_ = call.respond(200).Close()
			require.ErrorIs(t, x.End(), io.EOF)
		},
		"refused": func(r *rig) {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			send(x, "", `{"model":"none"}`, true)
			require.ErrorIs(t, x.End(), io.EOF)
		},
		"not JSON": func(r *rig) {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			send(x, "", `{`, true)
			require.ErrorIs(t, x.End(), io.EOF)
		},
		"left in its largeChunk": func(r *rig) {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, append(long, "")...), extproctest.RequestBody(largeChunk, false))
			synctest.Wait()
			x.Reset()
		},
		"left while held": func(r *rig) {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			send(x, "", model, true)
			elapse(20 * time.Second)
			_ = x.Stream.CloseSend()
		},
		"passed": func(r *rig) {
			t := r.t
			x := r.open(t, "")
			x.Send(extproctest.RequestHeaders(false, ":method", "PUT", ":path", "/"+largeChunk[:3000]), extproctest.RequestBody(largeChunk, false), extproctest.RequestBody(largeChunk, true))
			_ = x.Stream.CloseSend()
			require.ErrorIs(t, x.End(), io.EOF)
			require.Len(t, x.Events(), 3)
		},
		"a crash": func(r *rig) {
			t := r.t
			r.decide = func(*Request) Decision { crash(2); return Decision{} }
			x := r.open(t, envoy.LaneEdge)
			send(x, "", model, true)
			require.Error(t, x.End())
		},
		"nobody reads the body": func(r *rig) {
			t := r.t
			r.slots.up(engineA, 1)
			x := r.mute(t)
			m := extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath)
			x.Send(m)
			for range 10 {
				x.Send(extproctest.RequestBody(largeChunk, false))
			}
			x.Send(extproctest.RequestBody(model, true))
			synctest.Wait()
			require.False(t, r.noBodies(), "the window is full: the rest waits")
			x.Reset()
			r.endAllNow()
		},
		"nobody reads the answer": func(r *rig) {
			t := r.t
			x := r.mute(t)
			x.Send(chat(true)...)
			synctest.Wait()
			r.slots.up(engineA, 1)
			call := r.engine.call(t, 1)
			body := call.respond(200)
			go func() { _, _ = io.WriteString(body, strings.Repeat(largeChunk, 10)) }()
			elapse(time.Minute)
			require.Equal(t, 1, r.slots.taken())
			x.Reset()
			synctest.Wait()
			require.Zero(t, r.slots.taken())
		},
		"a body first": func(r *rig) {
			t := r.t
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestBody(largeChunk, true))
			require.Error(t, x.End())
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c)
			pool.RequireAllBack(t)
		})
	}
}

// The memory for decoding a body counts too, and is waited for.
func TestDecodingWaitsForMemory(t *testing.T) {
	t.Parallel()
	const large = maxTotal - maxTotal/4
	small := string(extproctest.Encoders["zstd"]([]byte(`{"model":"none"}`)))
	bubble(t, func(r *rig) {
		t := r.t
		require.True(t, r.bodies.large.TryAcquire(1), "somebody has a byte of it")
		first := r.ask(t, extproctest.Request(chatPath, small, "content-encoding", "zstd"))
		second := r.ask(t, extproctest.Request(chatPath, small, "content-encoding", "zstd"))
		elapse(29 * time.Second)
		require.Empty(t, first.Events())
		r.bodies.large.Release(1)
		for _, x := range []*extproctest.Exchange{first, second} {
			x.RequireEnded(t, `29s 404 {"error":{"code":"model_not_found","message":"model none does not exist here","source":"router"}}`)
		}
		require.True(t, r.bodies.large.TryAcquire(large))
		x := r.ask(t, extproctest.Request(chatPath, small, "content-encoding", "zstd"))
		require.ErrorIs(t, x.End(), io.EOF)
		require.Contains(t, x.Events()[0], "30s 503")
		// A body that is not compressed needs none of it.
		r.ask(t, extproctest.Request(chatPath, `{"model":"none"}`)).RequireEnded(t, `0s 404 {"error":{"code":"model_not_found","message":"model none does not exist here","source":"router"}}`)
		r.bodies.large.Release(large)
	})
}

// A held body counts with the bytes that are kept: a compressed one as it was received, or
// decoded if an alias was replaced in it.
func TestAHeldCompressedBodyCountsWithWhatIsKept(t *testing.T) {
	t.Parallel()
	const large = maxTotal - maxTotal/4
	for model, kept := range map[string]func(came, decoded int) int{
		"m":     func(came, _ int) int { return came },
		"alias": func(_, decoded int) int { return decoded - len("alias") + len("m") },
	} {
		text := `{"model":"` + model + `","x":"` + strings.Repeat(" ", 600_000) + `"}`
		came := string(extproctest.Encoders["gzip"]([]byte(text)))
		bubble(t, func(r *rig) {
			t := r.t
			x := r.ask(t, extproctest.Request(chatPath, came, "content-encoding", "gzip"))
			require.Empty(t, x.Events())
			require.Equal(t, 1, r.machine.Demand(chatOfM.Model))
			free := int64(large - kept(len(came), len(text)))
			require.True(t, r.bodies.large.TryAcquire(free))
			require.False(t, r.bodies.large.TryAcquire(1))
			r.bodies.large.Release(free)
			x.Reset()
		})
	}
}

// Compressed uploads that are large already must not wait for each other.
func TestCompressedUploadsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 400<<10)
	for i := range noise {
		noise[i] = byte(rand.N(256))
	}
	body := extproctest.Encoders["gzip"]([]byte(`{"model":"none","x":"` + hex.EncodeToString(noise) + `"}`))
	require.Greater(t, len(body), smallBody)
	bubble(t, func(r *rig) {
		t := r.t
		var all []*extproctest.Exchange
		for range 12 {
			x := r.open(t, envoy.LaneEdge)
			x.Send(extproctest.RequestHeaders(false, ":method", "POST", ":path", chatPath, "content-encoding", "gzip"))
			all = append(all, x)
			go func() {
				for rest := body; len(rest) > 0; {
					n := min(len(rest), len(largeChunk))
					x.Send(extproctest.RequestBody(string(rest[:n]), n == len(rest)))
					rest = rest[n:]
					<-time.After(time.Millisecond) // side by side
				}
			}()
		}
		for _, x := range all {
			require.ErrorIs(t, x.End(), io.EOF)
			require.Contains(t, x.Events()[0], " 404 ")
		}
		elapse(time.Second)
	})
}
