// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// plan answers as a test has planned. The real one is in package site.
type plan struct {
	put      func(p Proposal) (Verdict, error)
	putHints func(tag string, hints Part) (Verdict, error)
	read     func(revision int64, tag string) (Copy, error)
}

func (p *plan) Put(_ context.Context, q Proposal) (Verdict, error) { return p.put(q) }

func (p *plan) PutHints(_ context.Context, tag string, hints Part) (Verdict, error) {
	return p.putHints(tag, hints)
}

func (p *plan) Read(_ context.Context, revision int64, tag string) (Copy, error) {
	return p.read(revision, tag)
}

var errAway = errors.New("the server is away")

// away answers nothing.
func away() *plan {
	return &plan{
		put:      func(Proposal) (Verdict, error) { return Verdict{}, errAway },
		putHints: func(string, Part) (Verdict, error) { return Verdict{}, errAway },
		read:     func(int64, string) (Copy, error) { return Copy{}, errAway },
	}
}

func TestAStoreThatCannotAskDecidesAlone(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	shared := away()
	s.Share(shared)
	_, err := s.PushIf(t.Context(), "", numbered(7, "a"), false)
	require.NoError(t, err)
	_, err = s.PushIf(t.Context(), "", numbered(6, "b"), false)
	require.ErrorAs(t, err, new(*ConflictError))
	_, err = s.PushHints(t.Context(), []byte(`{"hints": []}`))
	require.NoError(t, err)
	_, err = s.Sync(t.Context())
	require.ErrorIs(t, err, errAway)

	// It offers what it has, once, before anything else.
	var offered []Proposal
	shared.put = func(p Proposal) (Verdict, error) {
		offered = append(offered, p)
		return Verdict{Outcome: OutcomeAccepted, Revision: 1}, nil
	}
	shared.read = func(revision int64, tag string) (Copy, error) {
		require.EqualValues(t, 1, revision)
		require.Equal(t, s.Current().tag, tag)
		return Copy{Revision: 1}, nil
	}
	for range 2 {
		result, err := s.Sync(t.Context())
		require.NoError(t, err)
		require.Zero(t, result)
	}
	require.Len(t, offered, 1)
	require.True(t, offered[0].Offer)
	require.EqualValues(t, 8, offered[0].Number)
	require.Equal(t, string(s.Current().JSON()), string(offered[0].Map.Text))
	require.GreaterOrEqual(t, offered[0].HintsAge, time.Duration(0))
}

func TestAPushOffersFirstWhatTheRouterDecidedAlone(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	push(t, s, numbered(7, "a"))
	shared := away()
	s.Share(shared)
	var seen []bool
	shared.put = func(p Proposal) (Verdict, error) {
		seen = append(seen, p.Offer)
		if p.Offer {
			return Verdict{Outcome: OutcomeKept, Revision: 3}, nil
		}
		return Verdict{Outcome: OutcomeAccepted, Revision: 4}, nil
	}
	_, err := s.PushIf(t.Context(), "", numbered(9, "b"), false)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, seen)
	require.Equal(t, []string{"b"}, s.Current().Models())
	shared.read = func(revision int64, _ string) (Copy, error) { return Copy{Revision: revision}, nil }
	result, err := s.Sync(t.Context())
	require.NoError(t, err)
	require.Equal(t, SyncResult{Dropped: true}, result)
}

// A server that loses its data after it kept another map than the one that was offered has no
// map, and gets this one.
func TestAMapIsOfferedToAServerThatHasNone(t *testing.T) {
	t.Parallel()
	s := NewStore(here, nil)
	push(t, s, numbered(7, "a"))
	outcomes := []Outcome{OutcomeKept, OutcomeAccepted}
	offers := 0
	shared := away()
	s.Share(shared)
	shared.put = func(p Proposal) (Verdict, error) {
		require.True(t, p.Offer)
		offers++
		return Verdict{Outcome: outcomes[offers-1], Revision: int64(offers)}, nil
	}
	shared.read = func(revision int64, _ string) (Copy, error) { return Copy{Revision: revision}, nil }
	_, err := s.Sync(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, offers)
	_, err = s.Sync(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, offers)
}

// sharedCopy is a map as the other routers share it.
func sharedCopy(t *testing.T, revision int64, text []byte) Copy {
	t.Helper()
	m := parse(t, string(text))
	c := State{Map: m, ReceivedAt: time.Now()}.copyOf(time.Now())
	c.Revision, c.Now = revision, time.Now()
	return c
}

func TestHintsForAMapThatIsReplacedMeanwhileAreCheckedAgain(t *testing.T) {
	t.Parallel()
	changes := 0
	s := NewStore(here, func(_, _ *Map) { changes++ })
	shared := away()
	s.Share(shared)
	revision := int64(0)
	shared.read = func(int64, string) (Copy, error) {
		revision++
		return sharedCopy(t, revision, numbered(int(revision), "m")), nil
	}
	shared.putHints = func(tag string, _ Part) (Verdict, error) {
		require.Equal(t, s.Current().tag, tag)
		if revision < 3 {
			return Verdict{Outcome: OutcomeMismatch}, nil
		}
		return Verdict{Outcome: OutcomeAccepted, Revision: revision, Now: time.Now()}, nil
	}
	sum, err := s.PushHints(t.Context(), []byte(`{"hints": [{"model": "m", "kind": "chat", "site": "here", "state": "warm", "observed_at": "2026-11-29T12:00:00Z"}]}`))
	require.NoError(t, err)
	require.Equal(t, HintsSummary{Hints: 1, Warm: 1, Unplaced: 1}, sum)
	require.EqualValues(t, 3, s.Current().Generation())
	require.Equal(t, 3, changes)

	// A map that came before hints is reported as taken, and written to disk, by the next Sync.
	path := mapFile(t)
	s.Persist(path)
	shared.read = func(revision int64, _ string) (Copy, error) { return Copy{Revision: revision}, nil }
	result, err := s.Sync(t.Context())
	require.NoError(t, err)
	require.Equal(t, SyncResult{Taken: true}, result)
	require.Equal(t, []string{"sitemap.json"}, files(t, path))
}

func TestTheAgeOfSharedHintsIsByTheSharedClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(here, nil)
		shared := away()
		s.Share(shared)
		// The router's clock is an hour before the shared one.
		c := sharedCopy(t, 1, []byte(emptyFleet))
		c.Now, c.HintsAge, c.Age = time.Now().Add(time.Hour), 10*time.Second, time.Minute
		c.Hints.Text = []byte(`[{"model":"m","kind":"chat","site":"a","state":"warm","observed_at":"` +
			time.Now().Add(time.Hour-15*time.Second).UTC().Format(time.RFC3339Nano) + `"}]`)
		shared.read = func(int64, string) (Copy, error) { return c, nil }
		_, err := s.Sync(t.Context())
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(-time.Minute), s.State().ReceivedAt)
		seen := s.Current().hints.sightings[0]
		require.True(t, seen.fresh(time.Since(s.Current().hints.received)))
		// Observed 15 seconds ago, so fresh for 15 more.
		time.Sleep(15*time.Second - 1)
		require.True(t, seen.fresh(time.Since(s.Current().hints.received)))
		time.Sleep(time.Nanosecond)
		require.False(t, seen.fresh(time.Since(s.Current().hints.received)))

		// Stale hints stay stale.
		c.Revision, c.HintsAge = 2, -1
		_, err = s.Sync(t.Context())
		require.NoError(t, err)
		require.Zero(t, s.Current().hints.received)
		require.Len(t, s.Current().Hints(), 1)
	})
}
