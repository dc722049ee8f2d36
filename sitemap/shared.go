// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Shared decides which map is in force for all routers of this site. An error of a method
// means that it cannot be asked: the store decides alone then. Its methods are called one at
// a time.
type Shared interface {
	// Put proposes a map.
	Put(ctx context.Context, p Proposal) (Verdict, error)
	// PutHints replaces the hints of the shared map, if tag is that of the map.
	PutHints(ctx context.Context, tag string, hints Part) (Verdict, error)
	// Read returns the shared map. If its revision is the one given, only the revision is set,
	// and if its tag is the one given, its text is empty.
	Read(ctx context.Context, revision int64, tag string) (Copy, error)
}

// Part is the canonical JSON of a part of a map, and its tag.
type Part struct {
	Tag  string
	Text []byte
}

// Copy is a map as the routers of a site share it.
type Copy struct {
	Map   Part // without hints
	Hints Part
	// Number is the generation and 1; 0 if the map has none.
	Number uint64
	// Replaced is the highest Number that this map or one before it replaced, if it is not
	// lower than Number, as after a push by force; else 0. A router that still has one of
	// those maps must not bring it back.
	Replaced uint64
	// Restored: the map comes from a file, and was not pushed since.
	Restored bool
	// Age and HintsAge are the times since the receipt. A negative HintsAge: the hints are
	// stale.
	Age, HintsAge time.Duration

	// Revision grows with each change, and Now is the time by the clock by which all routers
	// count the age of hints. Both are set in answers only. Revision 0: there is no map.
	Revision int64
	Now      time.Time
}

// Proposal is a map that should be in force.
type Proposal struct {
	Copy

	// Offer: the map is in force at a router that could not ask when it put it in force. Else it
	// is a push.
	Offer bool
	Force bool
	// IfMatch has the tags of which one must be that of the shared map; * is any. Nil: there is
	// no condition.
	IfMatch []string
}

// Outcome is what became of a proposal.
type Outcome string

// The outcomes.
const (
	OutcomeAccepted  Outcome = "accepted"
	OutcomeUnchanged Outcome = "unchanged" // accepted, and the map is the same but for its hints
	OutcomeConflict  Outcome = "conflict"  // the generation is not newer
	OutcomeMismatch  Outcome = "mismatch"  // the tag of the shared map is another one
	OutcomeKept      Outcome = "kept"      // the shared map stays, not the one that was offered
)

// Verdict is the answer to a proposal.
type Verdict struct {
	Outcome Outcome
	// The others are those of the shared map after the decision.
	Revision         int64
	Now              time.Time
	Tag, HintsTag    string
	Number, Replaced uint64
}

// UnreadableError is the error of a shared map that this router cannot read, such as one of a
// later version. The map in force stays.
type UnreadableError struct{ Err error }

// Error names the cause.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("the map that the other routers of the site have in force cannot be read: %v", e.Err)
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// errNotShared is the cause of an UnreadableError of hints.
var errNotShared = errors.New("hints need the map that they are for")

// link is what a store knows of the shared map.
type link struct {
	// mu is held during each change of the map in force and the call of Shared before it.
	mu     sync.Mutex
	shared Shared // nil: this router is alone
	// revision and tag are those of the shared map that was last seen.
	revision int64
	tag      string
	// unreadable: that map is not in force here.
	unreadable bool
	// alone: this router decided on the map in force, and has not offered it yet.
	alone bool
	// done is what was done since the last Sync, and unread the error of a map that could not
	// be read since.
	done   SyncResult
	unread error
}

// saw notes that the map in force is the shared one.
func (l *link) saw(revision int64, tag string) {
	l.revision, l.tag, l.unreadable, l.alone = revision, tag, false, false
}

// Share makes the store share its map. It must be called before the store is used by several
// goroutines.
func (s *Store) Share(shared Shared) {
	s.link.shared = shared
	s.link.alone = s.Current() != nil
}

// SyncResult is what Sync did.
type SyncResult struct {
	// Taken: another router's map was put in force.
	Taken bool
	// Dropped: a map was given up for it that this router had put in force alone.
	Dropped bool
}

// Sync puts the shared map in force if it is another one, and offers the map in force if it
// was put in force by this router alone, or if the shared one was lost. An *UnreadableError is
// returned once for each map. After a *PersistError the map is in force. The result also has
// what was done before a push since the last call.
func (s *Store) Sync(ctx context.Context) (SyncResult, error) {
	result, err := s.syncLocked(ctx)
	s.reportChanges()
	if result.Taken {
		err = errors.Join(err, s.disk.save(s.Current))
	}
	return result, err
}

func (s *Store) syncLocked(ctx context.Context) (result SyncResult, err error) {
	l := &s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	err = s.sync(ctx)
	result, l.done = l.done, SyncResult{}
	err, l.unread = errors.Join(err, l.unread), nil
	return result, err
}

// sync is Sync without reports. The lock of the link must be held.
func (s *Store) sync(ctx context.Context) error {
	l := &s.link
	for range 2 {
		if l.alone {
			if err := s.offer(ctx); err != nil {
				return err
			}
		}
		c, err := l.shared.Read(ctx, l.revision, l.tag)
		switch {
		case err != nil:
			return fmt.Errorf("reading the shared map: %w", err)
		case c.Revision > l.revision:
			s.take(c)
			return nil
		case c.Revision == l.revision && (c.Revision > 0 || s.Current() == nil):
			return nil
		}
		// The shared map was lost.
		l.revision, l.tag, l.unreadable, l.alone = 0, "", false, s.Current() != nil
	}
	return nil // the next call goes on
}

// offer offers the map in force. The lock of the link must be held.
func (s *Store) offer(ctx context.Context) error {
	v, err := s.link.shared.Put(ctx, Proposal{Copy: s.State().copyOf(time.Now()), Offer: true})
	if err != nil {
		return fmt.Errorf("offering the map: %w", err)
	}
	tag := s.Current().tag
	switch v.Outcome {
	case OutcomeAccepted:
		s.link.saw(v.Revision, tag)
	case OutcomeUnchanged:
		s.link.saw(0, tag) // its hints and its time of receipt may be others
	default:
		s.link.saw(0, "")
		s.link.done.Dropped = true
	}
	return nil
}

// copyOf returns the map for the other routers.
func (st State) copyOf(now time.Time) Copy {
	m := st.Map
	c := Copy{
		Map: Part{m.tag, m.json}, Hints: Part{m.hints.tag, m.hints.json}, Number: m.number(),
		Replaced: st.replaced, Restored: st.restored, Age: max(0, now.Sub(st.ReceivedAt)), HintsAge: -1,
	}
	if !m.hints.received.IsZero() {
		c.HintsAge = max(0, now.Sub(m.hints.received))
	}
	return c
}

// number returns the generation and 1, 0 if there is none.
func (c *core) number() uint64 {
	if !c.numbered {
		return 0
	}
	return uint64(c.generation) + 1 //nolint:gosec // it is not negative
}

// take puts the shared map in force. The lock of the link must be held.
func (s *Store) take(c Copy) {
	l := &s.link
	known := l.unreadable && c.Map.Tag == l.tag
	l.revision, l.tag, l.alone = c.Revision, c.Map.Tag, false
	if known {
		return
	}
	old := s.State()
	m, err := s.read(c, old.Map)
	if l.unreadable = err != nil; l.unreadable {
		l.unread = &UnreadableError{Err: err}
		return
	}
	now := time.Now()
	if c.HintsAge >= 0 {
		m.hints.receive(now.Add(-c.HintsAge), c.Now.Add(-c.HintsAge), s.freshFor)
	}
	st := State{Map: m, Source: SourceShared, ReceivedAt: now.Add(-c.Age), restored: c.Restored, replaced: c.Replaced}
	if old.Map == nil || old.Map.core != m.core {
		s.swap(st)
		l.done.Taken = true
		return
	}
	if old.restored == c.Restored {
		st.Source = old.Source
	}
	s.current.Store(&st)
}

// read parses the shared map. What is the same in the map in force is taken from there.
func (s *Store) read(c Copy, inForce *Map) (*Map, error) {
	var m *Map
	switch {
	case len(c.Map.Text) > 0:
		parsed, err := Parse(c.Map.Text, s.self)
		if err != nil {
			return nil, err
		}
		m = parsed
		if inForce != nil && inForce.tag == m.tag {
			m.core = inForce.core
		}
	case inForce == nil:
		return nil, errors.New("it has no text")
	default:
		m = &Map{core: inForce.core}
	}
	document := append(append([]byte(`{"hints":`), c.Hints.Text...), '}')
	h, err := s.readHints(document, m)
	if err != nil {
		return nil, err
	}
	m.hints = h
	return m, nil
}

// ask has a push decided for the site. asked is false if this router must decide alone. The
// lock of the link must be held.
func (s *Store) ask(ctx context.Context, m *Map, ifMatch string, force bool) (unchanged, asked bool, err error) {
	l := &s.link
	if l.shared == nil {
		return false, false, nil
	}
	if l.alone {
		if err := s.offer(ctx); err != nil {
			return false, false, nil //nolint:nilerr // it is counted where it happened
		}
	}
	p := Proposal{
		Force: force, IfMatch: tagsOf(ifMatch),
		Copy: State{Map: m, ReceivedAt: time.Now()}.copyOf(time.Now()),
	}
	p.HintsAge = 0
	v, err := l.shared.Put(ctx, p)
	if err != nil {
		return false, false, nil //nolint:nilerr // it is counted where it happened
	}
	switch v.Outcome {
	case OutcomeMismatch:
		return false, true, &MismatchError{IfMatch: ifMatch, InForce: v.etag()}
	case OutcomeConflict:
		return false, true, &ConflictError{Pushed: m.generation, InForce: int64(v.Number - 1)} //nolint:gosec // a conflict has a generation
	default:
	}
	s.put(m, v.Now, v.Replaced)
	l.saw(v.Revision, m.tag)
	return v.Outcome == OutcomeUnchanged, true, nil
}

// etag returns the entity tag of the shared map, "" if there is none.
func (v Verdict) etag() string {
	if v.Tag == "" {
		return ""
	}
	return `"` + v.Tag + v.HintsTag + `"`
}

// tagsOf returns the tags of the maps that an If-Match header names, without those of their
// hints, or * alone; nil if there is no header.
func tagsOf(ifMatch string) []string {
	if ifMatch == "" {
		return nil
	}
	tags := []string{}
	for text := range strings.SplitSeq(ifMatch, ",") {
		text = strings.TrimSpace(text)
		if text == "*" {
			return []string{"*"}
		}
		if len(text) == etagSize && text[0] == '"' && text[etagSize-1] == '"' {
			tags = append(tags, text[1:1+tagSize])
		}
	}
	return tags
}

// shareHints has hints decided for the site. asked is false if this router must decide alone.
// The lock of the link must be held.
func (s *Store) shareHints(ctx context.Context, data []byte) (sum HintsSummary, asked bool, err error) {
	l := &s.link
	if l.shared == nil {
		return sum, false, nil
	}
	for range 3 {
		if err := s.sync(ctx); err != nil {
			return sum, false, nil //nolint:nilerr // it is counted where it happened
		}
		if l.unreadable {
			return sum, true, &UnreadableError{Err: errNotShared}
		}
		h, err := s.readHints(data, s.Current())
		if err != nil {
			return sum, true, err
		}
		v, err := l.shared.PutHints(ctx, l.tag, Part{h.tag, h.json})
		switch {
		case err != nil:
			return sum, false, nil //nolint:nilerr // it is counted where it happened
		case v.Outcome == OutcomeAccepted:
			s.putHints(h, v.Now)
			l.revision = v.Revision
			return h.summary(), true, nil
		}
		// The map was replaced between the two calls.
	}
	return sum, false, nil
}
