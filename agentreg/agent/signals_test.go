// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

func TestEachEngineTellsItsSignals(t *testing.T) {
	t.Parallel()
	want := map[string]signals{
		VLLM:     {new(uint32(7)), new(uint32(2)), new(0.5)},
		SGLang:   {new(uint32(7)), new(uint32(2)), new(0.5)},
		LlamaCpp: {new(uint32(7)), new(uint32(2)), nil},
		Infinity: {nil, new(uint32(2)), nil},
		TEI:      {nil, new(uint32(2)), nil},
		Ollama:   {},
		Custom:   {},
	}
	require.Len(t, want, len(engines))
	for engine, w := range want {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			a := beside(t, newFake(engine), as(engine))
			require.Equal(t, w, a.askSignals(t.Context(), engines[engine].signals))
		})
	}
}

func TestLlamaCppWithoutMetricsTellsItsBusySlots(t *testing.T) {
	t.Parallel()
	a := beside(t, &fake{get: map[string]string{"/slots": answers[LlamaCpp]["/slots"]}}, as(LlamaCpp))
	require.Equal(t, signals{running: new(uint32(1))}, a.askSignals(t.Context(), engines[LlamaCpp].signals))
}

func TestMetricsThatMakeNoSenseAreNotTold(t *testing.T) {
	t.Parallel()
	p := prometheus{running: "r", waiting: "w", kvUse: []string{"new", "old"}}
	cases := map[string]struct {
		text string
		want signals
	}{
		"nothing":          {"", signals{}},
		"without a type":   {"r 2\n", signals{running: new(uint32(2))}},
		"the older name":   {"# TYPE old gauge\nold 0.5\n", signals{kvUse: new(0.5)}},
		"the newer name":   {"old 0.5\nnew 0.25\n", signals{kvUse: new(0.25)}},
		"more than all":    {"new 1.5\n", signals{kvUse: new(1.0)}},
		"negative":         {"r -1\nw 1\nnew -1\n", signals{waiting: new(uint32(1))}},
		"not a number":     {"r NaN\nw +Inf\nnew NaN\n", signals{}},
		"another type":     {"# TYPE r counter\nr 3\n", signals{}},
		"too many for us":  {"r 1e300\n", signals{}},
		"labels of a part": {"r{a=\"1\"} 1\nr{a=\"2\"} 2\n", signals{running: new(uint32(3))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := p.parse([]byte(tc.text))
			require.NoError(t, err)
			require.Equal(t, tc.want, s)
		})
	}
	for _, text := range []string{"r", "r {", "<html>", "r 1"} {
		_, err := p.parse([]byte(text))
		require.Error(t, err, text)
	}
}

func TestRequestsInsideAreCountedWhenBothNumbersAreKnown(t *testing.T) {
	t.Parallel()
	one, most := new(uint32(1)), new(uint32(math.MaxUint32))
	require.Equal(t, new(uint32(2)), signals{running: one, waiting: one}.inFlight())
	require.Nil(t, signals{running: one}.inFlight())
	require.Nil(t, signals{waiting: one}.inFlight())
	require.Nil(t, signals{running: most, waiting: most}.inFlight())
}

func TestHeartbeatCarriesTheSignals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		var off atomic.Bool
		f := newFake(VLLM)
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
		engine := &stuck{fake: newFake(VLLM)}
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
