// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// wakeCooldown is how long an agent whose wake failed gets no Wake while its model
// stays wanted. When the model is wanted anew it gets one at once, unless it is in a
// group.
const wakeCooldown = 10 * time.Second

// maxGroupCooldown is the longest time for which an agent of a group whose wakes fail
// gets no Wake. The time doubles with each failure in a row: each Wake may close
// another model.
const maxGroupCooldown = 5 * time.Minute

// stableTime is how long an agent must have served for its failed wakes to be forgotten.
const stableTime = 30 * time.Second

// attempt is the last Wake of an agent.
type attempt struct {
	open     bool      // it has neither succeeded nor failed yet
	sentAt   time.Time // zero: its end was logged
	began    time.Time // when the agent began to wake, or registered
	demandAt time.Time // when a request last waited for it since; one may wait now
}

// failures is what is known of the wakes of an agent that failed.
type failures struct {
	inARow  int
	blocked bool // no Wake until retryAt, or until its model is wanted anew
	retryAt time.Time
	reason  string // of the last one
	detail  string // for operators, not for clients
	number  uint64 // of the last one, among those of all agents
}

// cooldown is how long an agent gets no Wake after so many failures.
func (f *failures) cooldown(inGroup bool) time.Duration {
	if !inGroup {
		return wakeCooldown
	}
	return min(wakeCooldown<<min(f.inARow-1, 10), maxGroupCooldown)
}

// wake sends a Wake for m.
func (a *registration) wake(m *model) {
	a.log.Info().Str("model", m.name).Msg("waking")
	now := time.Now()
	m.failureReported = false
	a.toldToSleep = false
	a.attempt = attempt{open: true, sentAt: now, began: now, demandAt: now}
	a.session.send(&pb.RouterMessage{Message: &pb.RouterMessage_Wake{Wake: &pb.Wake{
		Model: m.name, Seq: a.messages.nextCommand(now),
	}}})
	a.setTimer()
}

// wakeFailed notes that the engine could not be woken. It gets no Wake for a while, and
// for notBefore at least. The detail is for operators, not for clients.
func (a *registration) wakeFailed(reason, detail string, notBefore time.Duration) {
	r, f := a.registry, &a.failures
	f.inARow++
	pause := max(f.cooldown(a.group != nil), notBefore)
	line := a.log.Info().Strs("models", a.hello.info.Models).
		Str("reason", reason).Stringer("next_try_in", pause.Round(time.Millisecond))
	if detail != "" {
		line = line.Str("detail", detail)
	}
	line.Msg("wake failed")
	r.failedWakes++
	f.blocked, f.retryAt = true, time.Now().Add(pause)
	f.reason, f.detail, f.number = reason, detail, r.failedWakes
	a.attempt.open, a.attempt.sentAt = false, time.Time{}
	a.reported = pb.State_STATE_ASLEEP
	for m := range r.models.of(a) {
		m.turn = 0 // other models of its group come first
	}
}

// endedSoon notes that an engine of a group ended by itself soon after it had come up.
// The first time it may start again at once.
func (a *registration) endedSoon() {
	if a.failures.inARow == 0 {
		a.failures.inARow = 1
		return
	}
	a.wakeFailed("the engine ended soon after its start", "", 0)
}
