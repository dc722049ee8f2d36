// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The sources of a map in force.
const (
	SourcePushed   = "pushed"
	SourceRestored = "restored"
	SourceShared   = "shared" // by another router of this site
)

// ErrTooLarge is the error of a push of more than MaxBytes.
var ErrTooLarge = errors.New("the map is larger than 8 MiB")

// ConflictError is the error of a push whose generation is not newer than that of the map in
// force.
type ConflictError struct {
	Pushed, InForce int64
}

// Error names the rule that was broken.
func (e *ConflictError) Error() string {
	if e.Pushed == e.InForce {
		return fmt.Sprintf("generation %d is in force with other content: raise the number, or force the push", e.InForce)
	}
	return fmt.Sprintf("generation %d is lower than %d, which is in force: raise the number, or force the push",
		e.Pushed, e.InForce)
}

// MismatchError is the error of a push whose If-Match does not name the map in force.
type MismatchError struct {
	// IfMatch is the header; InForce is the tag of the map in force, empty when
	// there is none.
	IfMatch, InForce string
}

// Error says what is wrong and what the writer must do.
func (e *MismatchError) Error() string {
	if e.InForce == "" {
		return "no map is in force, so none that If-Match names: push without If-Match"
	}
	return "the map in force is not the one that If-Match names: get it again and repeat the change"
}

// Summary is the answer to an accepted push.
type Summary struct {
	Generation int64 `json:"generation"`
	Sites      int   `json:"sites"`
	Placements int   `json:"placements"`
	// Holdable counts the models whose requests this site may hold.
	Holdable int `json:"holdable"`
	// Unchanged: the map differs from the previous one at most in its hints.
	Unchanged bool `json:"unchanged"`
}

// State is the map in force and its source. It is the zero value while there is no map.
type State struct {
	Map    *Map
	Source string
	// ReceivedAt is when the map was last pushed; for a restored map, when it
	// was written to disk.
	ReceivedAt time.Time

	restored bool   // here or, if it is shared, at the other router
	replaced uint64 // see Copy.Replaced
}

// Store holds the map in force.
type Store struct {
	self     string
	freshFor time.Duration
	onChange func(old, new *Map)
	current  atomic.Pointer[State]
	disk     disk
	link     link

	mu        sync.Mutex // held during swaps; guards the fields below
	changes   []change
	reporting bool
}

type change struct {
	old, new *Map
}

// DefaultHintsFreshFor is how long hints are fresh by default.
const DefaultHintsFreshFor = 30 * time.Second

// Option is a setting of a Store.
type Option func(*Store)

// HintsFreshFor sets how long hints are fresh after their receipt.
func HintsFreshFor(d time.Duration) Option {
	return func(s *Store) { s.freshFor = d }
}

// NewStore returns an empty store for the site self. onChange, which may be nil, is called
// for each swap to another map, in the order of the swaps, one call at a time and with no
// lock held: it may call the store. A push returns after its call of onChange, unless
// another goroutine is in onChange at that moment: that goroutine then makes the call. A map
// that differs only in its hints causes no call.
func NewStore(self string, onChange func(old, new *Map), options ...Option) *Store {
	s := &Store{self: self, freshFor: DefaultHintsFreshFor, onChange: onChange}
	for _, set := range options {
		set(s)
	}
	return s
}

// Current returns the map in force, nil when there is none.
func (s *Store) Current() *Map {
	return s.State().Map
}

// State returns the map in force with its source.
func (s *Store) State() State {
	if st := s.current.Load(); st != nil {
		return *st
	}
	return State{}
}

// Push puts a map in force. If its generation is lower than that of the map in force, or
// equal with other content, the error is a *ConflictError, unless force is set or the
// generation is equal and the map in force was restored. A map without a generation is
// always accepted, and always replaced. After a *PersistError the map is in force and the
// summary is valid. The other routers of the site are not asked; Sync offers them the map.
func (s *Store) Push(data []byte, force bool) (Summary, error) {
	return s.push(data, func(m *Map) (bool, error) { return s.accept(m, "", force) })
}

// PushIf is Push for all routers of the site, with an If-Match header, which is checked
// atomically with the swap. If it does not name the map in force, the error is a
// *MismatchError. An empty header always matches. If the other routers cannot be asked, this
// one decides alone.
func (s *Store) PushIf(ctx context.Context, ifMatch string, data []byte, force bool) (Summary, error) {
	return s.push(data, func(m *Map) (bool, error) {
		unchanged, asked, err := s.ask(ctx, m, ifMatch, force)
		if asked {
			return unchanged, err
		}
		return s.accept(m, ifMatch, force)
	})
}

// push has a map decided on with the lock of the link held.
func (s *Store) push(data []byte, decide func(m *Map) (unchanged bool, err error)) (Summary, error) {
	if len(data) > MaxBytes {
		return Summary{}, ErrTooLarge
	}
	m, err := Parse(data, s.self)
	if err != nil {
		return Summary{}, err
	}
	s.link.mu.Lock()
	unchanged, err := decide(m)
	s.link.mu.Unlock()
	if err != nil {
		return Summary{}, err
	}
	s.reportChanges()
	sum := Summary{
		Generation: m.generation,
		Sites:      len(m.sites),
		Placements: len(m.placements),
		Holdable:   len(m.holdable),
		Unchanged:  unchanged,
	}
	return sum, s.disk.save(s.Current)
}

// accept puts the map in force, or returns why it must not be. The lock of the link must be
// held.
func (s *Store) accept(m *Map, ifMatch string, force bool) (unchanged bool, err error) {
	old := s.State()
	if err := checkIfMatch(old.Map, ifMatch); err != nil {
		return false, err
	}
	unchanged = old.Map != nil && old.Map.tag == m.tag
	if !unchanged && !force {
		if err := checkGeneration(old, m); err != nil {
			return false, err
		}
	}
	replaced := old.replaced
	if !unchanged {
		replaced = old.replacedBy(m)
	}
	s.put(m, time.Now(), replaced)
	s.link.alone = true
	return unchanged, nil
}

// replacedBy returns Copy.Replaced of a map that replaces this one.
func (st State) replacedBy(m *Map) uint64 {
	if st.Map == nil {
		return 0
	}
	if replaced := max(st.Map.number(), st.replaced); replaced >= m.number() {
		return replaced
	}
	return 0
}

// put puts a pushed map in force. received is when it was received by the clock by which the
// age of its hints is counted.
func (s *Store) put(m *Map, received time.Time, replaced uint64) {
	now := time.Now()
	m.hints.receive(now, received, s.freshFor)
	st := State{Map: m, Source: SourcePushed, ReceivedAt: now, replaced: replaced}
	old := s.Current()
	if old == nil || old.tag != m.tag {
		s.swap(st)
		return
	}
	// The map is the same, so onChange is not called, but its hints are new.
	st.Map = &Map{core: old.core, hints: m.hints}
	s.current.Store(&st)
}

func checkIfMatch(m *Map, ifMatch string) error {
	switch {
	case ifMatch == "":
		return nil
	case m == nil:
		return &MismatchError{IfMatch: ifMatch}
	case !m.Matches(ifMatch):
		return &MismatchError{IfMatch: ifMatch, InForce: m.ETag()}
	}
	return nil
}

// checkGeneration returns an error if m, which has other content, is not newer than the map in
// force.
func checkGeneration(old State, m *Map) error {
	if old.Map == nil || !old.Map.numbered || !m.numbered || m.generation > old.Map.generation {
		return nil
	}
	if m.generation == old.Map.generation && old.restored {
		return nil
	}
	return &ConflictError{Pushed: m.generation, InForce: old.Map.generation}
}

// swap puts st in force and queues the call of onChange. The lock of the link must be held.
func (s *Store) swap(st State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.Current()
	s.current.Store(&st)
	if s.onChange != nil {
		s.changes = append(s.changes, change{old: old, new: st.Map})
	}
}

// reportChanges calls onChange for each queued swap, unless another goroutine is doing so.
func (s *Store) reportChanges() {
	if !s.startReporting() {
		return
	}
	for {
		c, ok := s.nextChange()
		if !ok {
			return
		}
		s.onChange(c.old, c.new)
	}
}

func (s *Store) startReporting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reporting {
		return false
	}
	s.reporting = true
	return true
}

// nextChange returns the next swap to report. If there is none, it ends the reporting under
// the same lock, so that a swap that is queued later is reported by its own goroutine.
func (s *Store) nextChange() (change, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.changes) == 0 {
		s.reporting = false
		return change{}, false
	}
	c := s.changes[0]
	s.changes = s.changes[1:]
	return c, true
}
