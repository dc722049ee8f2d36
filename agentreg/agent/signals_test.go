// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/agent/engines/enginestest"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

func TestEachEngineTellsItsSignals(t *testing.T) {
	t.Parallel()
	want := map[string]engines.Signals{
		engines.VLLM:     {Running: new(uint32(7)), Waiting: new(uint32(2)), KVUse: new(0.5)},
		engines.SGLang:   {Running: new(uint32(7)), Waiting: new(uint32(2)), KVUse: new(0.5)},
		engines.LlamaCpp: {Running: new(uint32(7)), Waiting: new(uint32(2))},
		engines.Infinity: {Waiting: new(uint32(2))},
		engines.TEI:      {Waiting: new(uint32(2))},
		engines.Ollama:   {},
		engines.Custom:   {},
	}
	require.Len(t, want, len(strings.Split(engines.Names(), ", ")))
	for engine, w := range want {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			a := beside(t, newFake(engine), as(engine))
			require.Equal(t, w, a.readSignals(t.Context()))
		})
	}
}

func TestLlamaCppWithoutMetricsTellsItsBusySlots(t *testing.T) {
	t.Parallel()
	a := beside(t, &fake{get: map[string]string{"/slots": enginestest.Answers[engines.LlamaCpp]["/slots"]}}, as(engines.LlamaCpp))
	require.Equal(t, engines.Signals{Running: new(uint32(1))}, a.readSignals(t.Context()))
}

func TestHeartbeatCarriesTheSignals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		var off atomic.Bool
		f := newFake(engines.VLLM)
		n.engine = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !off.Load() || r.URL.Path == "/health" {
				f.ServeHTTP(w, r)
			}
		})
		n.health.Store(http.StatusOK)
		n.run(n.config())
		after(protocol.DefaultLiveness / 3)
		got := reg.Agents()[0]
		require.Equal(t, []any{new(uint32(9)), new(uint32(7)), new(uint32(2)), new(0.5)}, []any{got.Reported, got.Running, got.Waiting, got.KVUse})

		off.Store(true)
		after(sampleEvery + protocol.DefaultLiveness/3)
		got = reg.Agents()[0]
		require.Nil(t, got.Reported)
		require.Nil(t, got.KVUse)
	})
}

// stuck is an engine whose metrics never come.
type stuck struct {
	*fake
	asked atomic.Int64
}

func (s *stuck) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" {
		s.asked.Add(1)
		<-r.Context().Done()
		return
	}
	s.fake.ServeHTTP(w, r)
}

func TestEngineThatIsSlowToTellDelaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		engine := &stuck{fake: newFake(engines.VLLM)}
		n.engine = engine
		n.health.Store(http.StatusOK)
		n.run(n.config())
		after(time.Millisecond)
		require.Equal(t, 1, reg.Serving(llama))
		n.checks.Store(0)
		for range 10 {
			after(protocol.DefaultLiveness / 3)
			require.WithinDuration(t, time.Now(), reg.Agents()[0].LastSeen, time.Millisecond)
		}
		require.EqualValues(t, 10*protocol.DefaultLiveness/3/steadyPoll, n.checks.Load(), "health is asked as ever")
		require.Less(t, engine.asked.Load(), int64(15), "one question at a time")
		require.Nil(t, reg.Agents()[0].Running)
	})
}
