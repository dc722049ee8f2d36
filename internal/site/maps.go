// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/sitemap"
)

// Maps makes a map that is pushed to one router be in force at all. One script decides each
// push; a message tells the routers that the map or its hints have changed, and a beat makes
// good a message that was lost. While the server does not answer, each router decides alone,
// and when it answers again, a router offers what it has decided: the script chooses.
type Maps struct {
	c     *shared.Client
	store *sitemap.Store
	log   zerolog.Logger
	wake  chan struct{} // receives a token when the shared map may have changed
}

// NewMaps has the store share its map. It must be called before c runs.
func NewMaps(c *shared.Client, store *sitemap.Store, log zerolog.Logger) *Maps {
	m := &Maps{c: c, store: store, log: log, wake: make(chan struct{}, 1)}
	store.Share(m)
	c.OnMessage("map", func(string) { m.changed() })
	c.OnBeat(func(context.Context) { m.changed() })
	c.Go(m.run)
	return m
}

func (m *Maps) changed() { notify(m.wake) }

func (m *Maps) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			m.Sync(ctx)
		}
	}
}

// Sync puts the shared map in force, if the server answers.
func (m *Maps) Sync(ctx context.Context) {
	result, err := m.store.Sync(ctx)
	if unreadable, ok := errors.AsType[*sitemap.UnreadableError](err); ok {
		m.log.Error().Err(unreadable).Msg("--shared: the map in force stays: run the same version on all routers of the site")
	}
	if persist, ok := errors.AsType[*sitemap.PersistError](err); ok {
		m.log.Error().Err(persist).Msg("the map is in force but is not on disk")
	}
	if result.Dropped {
		m.log.Warn().Msg("--shared: the map that this router put in force alone is not the one of the site, which replaces it")
	}
	if result.Taken {
		m.log.Info().Int64("generation", m.store.Current().Generation()).Msg("sibling map of the site applied")
	}
}

// Put proposes a map.
func (m *Maps) Put(ctx context.Context, p sitemap.Proposal) (sitemap.Verdict, error) {
	if !m.c.Up() {
		return sitemap.Verdict{}, shared.ErrDown // before a map is compressed for nothing
	}
	text, err := pack(p.Map.Text)
	if err != nil {
		return sitemap.Verdict{}, err
	}
	hints, err := pack(p.Hints.Text)
	if err != nil {
		return sitemap.Verdict{}, err
	}
	args := []string{
		flag(p.Offer), p.Map.Tag, numberText(p.Number), numberText(p.Replaced), flag(p.Restored), microText(p.Age), text,
		p.Hints.Tag, microText(p.HintsAge), hints, flag(p.Force), conditionText(p.IfMatch),
	}
	return m.verdict(putMap.RunApart(ctx, m.c, m.keys(), args))
}

// PutHints replaces the hints of the shared map if it has the tag.
func (m *Maps) PutHints(ctx context.Context, tag string, hints sitemap.Part) (sitemap.Verdict, error) {
	text, err := pack(hints.Text)
	if err != nil {
		return sitemap.Verdict{}, err
	}
	return m.verdict(putHints.RunApart(ctx, m.c, m.keys(), []string{tag, hints.Tag, text}))
}

func (m *Maps) verdict(r valkey.ValkeyResult) (v sitemap.Verdict, err error) {
	fields, err := fieldsOf(r, 7)
	if err != nil {
		return v, fmt.Errorf("deciding on a map: %w", err)
	}
	v.Outcome, v.Tag, v.HintsTag = sitemap.Outcome(fields.text(0)), fields.text(3), fields.text(4)
	v.Revision, v.Now = fields.int(1), time.UnixMicro(fields.int(2))
	v.Number, v.Replaced = fields.number(5), fields.number(6)
	if fields.err != nil {
		return v, fmt.Errorf("deciding on a map: %w", fields.err)
	}
	return v, nil
}

// Read returns the shared map. The usual call, when nothing has changed, is a short one.
func (m *Maps) Read(ctx context.Context, revision int64, tag string) (sitemap.Copy, error) {
	key, known := m.c.Key("map"), strconv.FormatInt(revision, 10)
	now, err := m.c.DoSlowly(ctx, "map_revision", func(b valkey.Builder) valkey.Completed {
		return b.Hget().Key(key).Field("revision").Build()
	}).ToString()
	switch {
	case valkey.IsValkeyNil(err):
		return sitemap.Copy{}, nil
	case err != nil:
		return sitemap.Copy{}, fmt.Errorf("reading the revision: %w", err)
	case now == known:
		return sitemap.Copy{Revision: revision}, nil
	}
	fields, err := fieldsOf(getMap.RunApart(ctx, m.c, []string{key}, []string{tag}), 11)
	if err != nil {
		return sitemap.Copy{}, fmt.Errorf("reading the map: %w", err)
	}
	c := fields.copy()
	if fields.err != nil {
		return sitemap.Copy{}, fmt.Errorf("reading the map: %w", fields.err)
	}
	return c, nil
}

// keys returns the keys of the scripts: the map's, and the channel of its changes.
func (m *Maps) keys() []string { return []string{m.c.Key("map"), m.c.Key("map")} }

func flag(b bool) string {
	if b {
		return "1"
	}
	return ""
}

// numberText returns a number such that texts have the order of their numbers, for Lua has no
// integers of 64 bits.
func numberText(n uint64) string { return fmt.Sprintf("%020d", n) }

// microText returns microseconds, empty for a negative duration.
func microText(d time.Duration) string {
	if d < 0 {
		return ""
	}
	return strconv.FormatInt(d.Microseconds(), 10)
}

// conditionText returns the tags between commas; empty if there is no condition.
func conditionText(tags []string) string {
	switch {
	case tags == nil:
		return ""
	case len(tags) == 1 && tags[0] == "*":
		return "*"
	}
	return "," + strings.Join(tags, ",") + ","
}

// fields are the parts of a script's answer. err is that of the first part that is wrong.
type fields struct {
	list []string
	err  error
}

// fieldsOf returns an answer that has n parts.
func fieldsOf(r valkey.ValkeyResult, n int) (*fields, error) {
	list, err := r.AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("the answer: %w", err)
	}
	if len(list) != n {
		return nil, fmt.Errorf("the answer has %d parts, not %d", len(list), n)
	}
	return &fields{list: list}, nil
}

func (f *fields) text(i int) string { return f.list[i] }

func (f *fields) int(i int) int64 {
	n, err := strconv.ParseInt(f.list[i], 10, 64)
	f.note(err)
	return n
}

func (f *fields) number(i int) uint64 {
	n, err := strconv.ParseUint(f.list[i], 10, 64)
	f.note(err)
	return n
}

// since returns the time from a moment to now, both in microseconds; -1 if the moment is empty.
func (f *fields) since(i int, now int64) time.Duration {
	if f.list[i] == "" {
		return -1
	}
	return max(0, time.Duration(now-f.int(i))*time.Microsecond)
}

func (f *fields) unpacked(i int) []byte {
	text, err := unpack(f.list[i])
	f.note(err)
	return text
}

func (f *fields) note(err error) {
	if f.err == nil {
		f.err = err
	}
}

// copy returns the answer of getMap.
func (f *fields) copy() sitemap.Copy {
	now := f.int(1)
	return sitemap.Copy{
		Revision: f.int(0), Now: time.UnixMicro(now),
		Map:    sitemap.Part{Tag: f.text(2), Text: f.unpacked(3)},
		Number: f.number(4), Replaced: f.number(5), Restored: f.text(6) != "", Age: f.since(7, now),
		Hints: sitemap.Part{Tag: f.text(8), Text: f.unpacked(9)}, HintsAge: f.since(10, now),
	}
}
