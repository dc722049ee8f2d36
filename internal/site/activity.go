// SPDX-License-Identifier: Apache-2.0

package site

import (
	"encoding/binary"
	"time"

	"github.com/holdgate/holdgate/internal/shared"
)

// Use is how a router uses a model.
type Use struct {
	InFlight int64         // requests that its replicas have of this router
	Idle     time.Duration // since a request was last routed to it
}

// activityVersion is the first byte of a value. A router ignores those of other versions.
const activityVersion = 1

// Activity is which models the routers of the site use. Each writes it at its beats, so that it
// is up to shared.Beat old, and ends shared.Life after a router died.
type Activity struct{ levels *shared.Levels }

// NewActivity returns the activity. own returns the models that this router uses; models that
// were not used for long may be left out. It must be called before the client runs.
func NewActivity(c *shared.Client, own func() map[string]Use) *Activity {
	all := func() map[string]string {
		values := map[string]string{}
		for model, u := range own() {
			values[model] = u.encode()
		}
		return values
	}
	return &Activity{levels: c.NewLevels("activity", shared.LevelOptions{
		Own: func(model string) string { return all()[model] }, All: all, OnChange: func(string) {},
	})}
}

// Used reports whether another router has a request of the model in flight, or routed one to it
// within the last window.
func (a *Activity) Used(model string, window time.Duration) (used bool) {
	a.levels.Each(model, func(value string) {
		u, ok := decodeUse(value)
		used = used || ok && (u.InFlight > 0 || u.Idle < window)
	})
	return used
}

// encode returns the bytes of a use, with its time in seconds.
func (u Use) encode() string {
	b := []byte{activityVersion}
	b = binary.AppendUvarint(b, uint64(max(0, u.InFlight)))
	b = binary.AppendUvarint(b, uint64(max(0, u.Idle/time.Second)))
	return string(b)
}

// decodeUse reads a use. ok is false for one of another version.
func decodeUse(text string) (u Use, ok bool) {
	if text == "" || text[0] != activityVersion {
		return Use{}, false
	}
	r := reader{rest: text[1:]}
	u.InFlight = int64(min(r.number(), 1<<31))
	u.Idle = time.Duration(min(r.number(), 1<<32)) * time.Second
	return u, !r.bad && r.rest == ""
}
