// SPDX-License-Identifier: Apache-2.0

package events

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// seen returns the models of the events that a reader has now.
func seen(t *testing.T, r *Reader) (models []string, id string) {
	t.Helper()
	for {
		list, last, open := r.Next()
		require.True(t, open)
		if len(list) == 0 {
			return models, last
		}
		for _, e := range list {
			if e.Type == Lost {
				models = append(models, "lost")
				continue
			}
			models = append(models, e.Model)
		}
	}
}

func add(l *Log, models ...string) {
	for _, m := range models {
		l.Add(Event{Type: Held, Model: m})
	}
}

func TestAReaderContinuesWhereItWas(t *testing.T) {
	t.Parallel()
	l := NewLog()
	add(l, "before")
	r := l.Read("")
	add(l, "a", "b")
	got, id := seen(t, r)
	require.Equal(t, []string{"a", "b"}, got)
	r.Close()
	add(l, "c")
	r = l.Read(id)
	got, _ = seen(t, r)
	require.Equal(t, []string{"c"}, got)
	r.Close()
	for _, unknown := range []string{"x", NewLog().run + "-1", l.run + "-9", l.run + "-", l.run + "--1", id + "0"} {
		r := l.Read(unknown)
		got, _ := seen(t, r)
		require.Equal(t, []string{"lost"}, got, unknown)
		add(l, "d")
		got, _ = seen(t, r)
		require.Equal(t, []string{"d"}, got, unknown)
		r.Close()
	}
	require.Zero(t, l.Readers())
}

func TestASlowReaderIsToldWhatItLost(t *testing.T) {
	t.Parallel()
	l := NewLog()
	r := l.Read("")
	defer r.Close()
	for range kept + 7 {
		add(l, "m")
	}
	list, _, _ := r.Next()
	require.Len(t, list, maxBatch)
	require.Equal(t, Lost, list[0].Type)
	require.Equal(t, uint64(7), list[0].Events)
	got, _ := seen(t, r)
	require.Len(t, got, kept-maxBatch+1)
}

func TestTheReadersAreCounted(t *testing.T) {
	t.Parallel()
	l := NewLog()
	l.Allow(2)
	a, b := l.Read(""), l.Read("")
	require.NotNil(t, b)
	require.Nil(t, l.Read(""))
	a.Close()
	c := l.Read("")
	require.NotNil(t, c)
	add(l, "last")
	l.Close()
	require.Nil(t, l.Read(""), "after the end")
	list, _, open := c.Next()
	require.True(t, open, "what was added before the end is still read")
	require.Len(t, list, 1)
	_, _, open = c.Next()
	require.False(t, open)
	b.Close()
	c.Close()
	require.Zero(t, l.Readers())
}

// A reader that waits for Changed misses nothing, whenever events come.
func TestAReaderMissesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const events = 500 // fewer than are kept
		l := NewLog()
		r := l.Read("")
		defer r.Close()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				for range events / 5 {
					add(l, "m")
				}
			})
		}
		n := 0
		for n < events {
			<-r.Changed()
			list, _, _ := r.Next()
			n += len(list)
		}
		wg.Wait()
		require.Equal(t, events, n)
	})
}

func TestTheLastDecisionsAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		require.Empty(t, l.Decisions())
		l.Add(Event{Type: Awake, Model: "no decision"})
		for range keptDecisions {
			add(l, "old")
		}
		time.Sleep(time.Second)
		l.Add(Event{Type: Refused, Model: "new", Reason: "model_not_found", Status: 404})
		got := l.Decisions()
		require.Len(t, got, keptDecisions)
		require.Equal(t, Event{Type: Refused, Time: time.Now(), Model: "new", Reason: "model_not_found", Status: 404}, got[0])
		require.Equal(t, "old", got[1].Model)
	})
}

func TestTextsAreShortAndValid(t *testing.T) {
	t.Parallel()
	l := NewLog()
	l.Add(Event{Type: Refused, Model: strings.Repeat("é", 1<<16), Reason: "\xff"})
	e := l.Decisions()[0]
	require.Equal(t, strings.Repeat("é", maxText/2)+"…", e.Model)
	require.Equal(t, "\uFFFD", e.Reason)
}

func TestAModelHasAnEventForEachChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		m := NewModels(l)
		r := l.Read("")
		defer r.Close()
		begin := time.Now()
		for _, state := range []string{"asleep", "asleep", "waking", "waking", "warm", "asleep", "waking", "elsewhere", "asleep", "warm"} {
			m.Saw("m", state)
			require.Equal(t, state == "waking", !m.WakingSince("m").IsZero())
			time.Sleep(time.Second)
		}
		m.Gone("m")
		m.Gone("m")
		var got []string
		list, _, _ := r.Next()
		for _, e := range list {
			require.Equal(t, "m", e.Model)
			got = append(got, e.Time.Sub(begin).String()+" "+string(e.Type))
		}
		require.Equal(t, []string{"2s waking", "4s awake", "5s asleep", "6s waking", "7s asleep", "9s awake", "10s asleep"}, got)
		require.Empty(t, m.states)
	})
}

// Nobody pays for events that nobody reads.
func TestAnEventWithoutTextsAllocatesNothing(t *testing.T) {
	l := NewLog()
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Add(Event{Type: Held}) }))
}
