// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json/v2"
	"fmt"
	"net/http"
	"time"

	"github.com/holdgate/holdgate/internal/events"
)

// The times of a stream of events.
const (
	eventWrite = 10 * time.Second // how long the client may take for a message
	eventPing  = 15 * time.Second // silence before a comment, which finds clients that are gone
)

// events sends what happens as server-sent events, until the client leaves or the router ends.
func (d Deps) events(w http.ResponseWriter, r *http.Request) {
	if fromElsewhere(r) {
		fail(w, http.StatusForbidden, "cross_origin", "the admin API takes no calls from pages of other sites")
		return
	}
	if r.Method == http.MethodHead {
		eventHeaders(w)
		return
	}
	reader := d.Events.Read(r.Header.Get("Last-Event-ID"))
	if reader == nil {
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "too_many_readers", "as many clients as the port allows already read events, or the router is shutting down")
		return
	}
	defer reader.Close()
	eventHeaders(w)
	s := eventStream{w: w, c: http.NewResponseController(w)}
	if s.write([]byte(": events\n\n")) != nil {
		return
	}
	s.run(r, reader)
}

func eventHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
}

// eventStream is the response to a reader of events.
type eventStream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func (s eventStream) run(r *http.Request, reader *events.Reader) {
	ping := time.NewTicker(eventPing)
	defer ping.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-reader.Changed():
			list, id, open := reader.Next()
			if !open || s.send(list, id) != nil {
				return
			}
			ping.Reset(eventPing)
		case <-ping.C:
			if s.write([]byte(": ping\n\n")) != nil {
				return
			}
		}
	}
}

// send sends events in one piece. The client continues after the last one, whose id is id.
func (s eventStream) send(list []events.Event, id string) error {
	if len(list) == 0 {
		return nil
	}
	var b bytes.Buffer
	for i := range list {
		data, err := json.Marshal(&list[i])
		if err != nil {
			return fmt.Errorf("encoding an event: %w", err)
		}
		if i == len(list)-1 {
			fmt.Fprintf(&b, "id: %s\n", id)
		}
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", list[i].Type, data)
	}
	return s.write(b.Bytes())
}

func (s eventStream) write(text []byte) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(eventWrite)); err != nil {
		return fmt.Errorf("limiting the time of a write: %w", err)
	}
	if _, err := s.w.Write(text); err != nil {
		return fmt.Errorf("sending events: %w", err)
	}
	if err := s.c.Flush(); err != nil {
		return fmt.Errorf("sending events: %w", err)
	}
	return nil
}
