// SPDX-License-Identifier: Apache-2.0

package backend

import "sync"

// questions is what the health checks of a backend have told since it was last
// wanted.
type questions struct {
	mu    sync.Mutex
	open  bool // a check is under way
	known bool // one was answered
	down  bool // the last one failed
	then  []func()
}

func (q *questions) ask() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
}

// answer notes how a check ended, and reports whether that is news.
func (q *questions) answer(err error) (news bool) {
	q.mu.Lock()
	news = q.down != (err != nil)
	q.open, q.known, q.down = false, true, err != nil
	then := q.then
	q.then = nil
	q.mu.Unlock()
	if err != nil {
		for _, f := range then {
			f()
		}
	}
	return news
}

// forget is for a backend that is wanted no more.
func (q *questions) forget() (news bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	news = q.down
	q.open, q.known, q.down, q.then = false, false, false, nil
	return news
}

func (q *questions) failed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.down
}

// unlessUp calls f when the check that is under way, or the first one, has failed,
// and at once when the last one has. After one that succeeds it does not.
func (q *questions) unlessUp(f func()) {
	q.mu.Lock()
	switch {
	case q.open || !q.known:
		q.then = append(q.then, f)
		q.mu.Unlock()
	case q.down:
		q.mu.Unlock()
		f()
	default:
		q.mu.Unlock()
	}
}
