// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync"
	"time"
)

// logStreams counts the open streams of the edge's log, by Envoy: see envoyOf. When an Envoy has
// had none for envoyGone, it has ended, and so have all requests that it carried.
type logStreams struct {
	mu   sync.Mutex
	open map[string]int
	told map[string]bool // an entry with the router's metadata came over an open stream
}

// envoyGone is how long an Envoy may be without a log stream before its requests count as
// ended. A running Envoy connects again for its next record.
const envoyGone = 10 * time.Second

func (l *logStreams) opened(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[string]int{}
	}
	l.open[from]++
}

func (l *logStreams) closed(s *Server, from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from]--; l.open[from] > 0 {
		return
	}
	delete(l.open, from)
	delete(l.told, from)
	if s.moves() {
		return // the process that replaces this one notices when the Envoy ends
	}
	closed := time.Now()
	time.AfterFunc(envoyGone, func() {
		if l.isOpen(from) {
			return // Envoy has connected again, or another one has its address
		}
		s.endCarried(from, closed)
	})
}

func (l *logStreams) isOpen(from string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[from] > 0
}

// tells notes that an entry with the router's metadata came from an Envoy. first is true for
// the first one over the streams that are open.
func (l *logStreams) tells(from string) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told == nil {
		l.told = map[string]bool{}
	}
	first = !l.told[from]
	l.told[from] = true
	return first
}

// tell reports whether an Envoy tells when a request that it carries has ended: it has a log
// stream, and its entries have the router's metadata. A gateway may have no log, or one
// without the metadata, in which no request could be found.
func (l *logStreams) tell(from string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told[from]
}

// streams returns the number of streams of all Envoys.
func (l *logStreams) streams() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, open := range l.open {
		n += open
	}
	return n
}

// endCarried ends the requests that an Envoy carried whose last log stream closed at a time.
func (s *Server) endCarried(from string, closed time.Time) {
	if s.d.Others != nil {
		s.d.Others.EnvoyGone(from, closed)
	}
	old := s.flights.carried(from, closed)
	for _, fl := range old {
		s.endLost(fl)
	}
	if len(old) > 0 {
		s.d.Log.Warn().Int("requests", len(old)).Msg("Envoy closed its access log and did not reconnect, ending the requests that it carried")
	}
}
