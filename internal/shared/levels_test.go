// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

// board is a router with levels.
type board struct {
	client *shared.Client
	levels *shared.Levels

	mu      sync.Mutex
	own     map[string]string
	changed []string
	gone    []map[string]string
}

func newBoard(server *valkeytest.Server) *board { return newBoardAt(server, server.URL()) }

func newBoardAt(server *valkeytest.Server, url string) *board {
	b := &board{own: map[string]string{}}
	b.client = server.RouterAt(shared.Address{URL: url}, func(c *shared.Client) {
		b.levels = c.NewLevels("test", shared.LevelOptions{
			Own: func(name string) string {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.own[name]
			},
			All: func() map[string]string {
				b.mu.Lock()
				defer b.mu.Unlock()
				return maps.Clone(b.own)
			},
			OnChange: func(name string) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.changed = append(b.changed, name)
			},
			OnGone: func(values map[string]string) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.gone = append(b.gone, values)
			},
		})
	})
	return b
}

func (b *board) set(name, value string) {
	b.mu.Lock()
	if value == "" {
		delete(b.own, name)
	} else {
		b.own[name] = value
	}
	b.mu.Unlock()
	b.levels.Changed(name)
}

// see returns the others' values of a name, sorted.
func (b *board) see(name string) []string {
	var values []string
	b.levels.Each(name, func(v string) { values = append(values, v) })
	slices.Sort(values)
	return values
}

func (b *board) awaitSees(t *testing.T, name string, want ...string) {
	t.Helper()
	polltest.Until(t, "the router sees "+strings.Join(want, ", "), func() bool { return slices.Equal(b.see(name), want) })
}

func TestLevelsReachTheOtherRouters(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newBoard(server), newBoard(server)
	one.set("a model", "\x00 binary\n")
	two.awaitSees(t, "a model", "\x00 binary\n")
	three := newBoard(server)
	two.set("a model", "of two")
	three.awaitSees(t, "a model", "\x00 binary\n", "of two")
	one.awaitSees(t, "a model", "of two")
	one.set("a model", "")
	three.awaitSees(t, "a model", "of two")
	require.Empty(t, two.see("a model"))

	var names []string
	three.levels.Names(func(name string) { names = append(names, name) })
	require.Equal(t, []string{"a model"}, names)
	three.mu.Lock()
	defer three.mu.Unlock()
	require.Contains(t, three.changed, "a model")
}

func TestThousandsOfLevelsAreWrittenAndRead(t *testing.T) {
	server := valkeytest.Start(t)
	one := newBoard(server)
	const names = 9001
	one.mu.Lock()
	for i := range names {
		one.own[strconv.Itoa(i)] = "x"
	}
	one.mu.Unlock()
	one.levels.Changed("0")
	two := newBoard(server)
	two.awaitSees(t, "0", "x")
	polltest.Until(t, "the router sees all", func() bool {
		n := 0
		two.levels.Names(func(string) { n++ })
		return n == names
	})
	two.awaitSees(t, "9000", "x")
}

// TestARouterThatStartsKnowsTheLevels, before anybody could ask it.
func TestARouterThatStartsKnowsTheLevels(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newBoard(server), newBoard(server)
	one.set("x", "1")
	two.awaitSees(t, "x", "1")
	for range 20 {
		require.Equal(t, []string{"1"}, newBoard(server).see("x"))
	}
}

// Sites with databases of their own know nothing of one another, even with the same prefix: the
// server delivers a message whatever the database.
func TestADatabaseIsASiteOfItsOwn(t *testing.T) {
	server := valkeytest.StartReal(t)
	one, two := newBoardAt(server, server.URL()+"/1"), newBoardAt(server, server.URL()+"/1")
	other := newBoardAt(server, server.URL()+"/2")
	for i := range 20 {
		one.set("x", strconv.Itoa(i+1))
		two.awaitSees(t, "x", strconv.Itoa(i+1))
	}
	require.Len(t, two.client.Routers(), 2)
	require.Len(t, other.client.Routers(), 1)
	other.mu.Lock()
	defer other.mu.Unlock()
	require.Empty(t, other.changed)
}

func TestALostMessageIsMadeGood(t *testing.T) {
	server := valkeytest.Start(t)
	one, two := newBoard(server), newBoard(server)
	one.mu.Lock()
	one.own["quiet"] = "never published" // Changed is not called, so only a beat writes it
	one.mu.Unlock()
	two.awaitSees(t, "quiet", "never published")
	one.mu.Lock()
	delete(one.own, "quiet")
	one.mu.Unlock()
	two.awaitSees(t, "quiet")
}

func TestLevelsOfARouterThatDiedEnd(t *testing.T) {
	t.Parallel()
	server := valkeytest.Start(t)
	one, two := newBoard(server), newBoard(server)
	one.set("x", "1")
	two.awaitSees(t, "x", "1")
	// A router that died writes nothing more. Its name is still among the living ones for
	// Life, so this removes it as the server's clock would.
	err := two.client.DoSlowly(t.Context(), "test", func(b valkey.Builder) valkey.Completed {
		return b.Zrem().Key(two.client.Key("routers")).Member(one.client.ID()).Build()
	}).Error()
	require.NoError(t, err)
	server.Stop() // nothing more of one comes
	begin := time.Now()
	two.awaitSees(t, "x")
	require.LessOrEqual(t, time.Since(begin), shared.Life+time.Second)
	polltest.Until(t, "the router is told what the other one had", func() bool {
		had := false
		two.levels.EachLast("x", func(v string) { had = v == "1" })
		two.mu.Lock()
		defer two.mu.Unlock()
		told := len(two.gone) > 0 && maps.Equal(two.gone[0], map[string]string{"x": "1"})
		require.True(t, had || told, "at each moment one of them has it")
		return told && !had
	})
}
