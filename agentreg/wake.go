// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
)

// wakeCooldown is how long an agent is sent no Wake after a failed one while its model stays
// wanted. When the model is wanted again it is sent one at once, unless it is in a group.
const wakeCooldown = 10 * time.Second

// maxGroupCooldown is the longest cooldown of an agent of a group. The cooldown doubles with
// each failure in a row, since each Wake may cost another model its room.
const maxGroupCooldown = 5 * time.Minute

// stableTime is how long an agent must serve before its earlier failed wakes no longer count.
const stableTime = 30 * time.Second

// attempt is the last Wake of an agent.
type attempt struct {
	open     bool      // it has neither succeeded nor failed yet
	sentAt   time.Time // zero: its end was logged
	began    time.Time // when the agent began to wake, or registered
	demandAt time.Time // when a request last waited for the agent; one may be waiting now
}

// failures describes the failed wakes of an agent.
type failures struct {
	inARow  int
	blocked bool // no Wake until retryAt, or until its model is wanted again
	retryAt time.Time
	reason  string // of the last one
	detail  string // for operators, not for clients
	number  uint64 // of the last one, among those of all agents
}

// cooldown returns how long the agent is sent no Wake after its last failure.
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

// wakeFailed records that the engine could not be woken. The agent is sent no Wake for its
// cooldown, or for notBefore if that is longer. The detail is for operators, not for clients.
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
	for m := range r.models.ofAgent(a) {
		m.turn = 0 // other models of its group come first
	}
}

// endedSoon records that an engine of a group ended by itself soon after it had come up. It
// counts as a failed wake, except the first time, when the engine may start again at once.
func (a *registration) endedSoon() {
	if a.failures.inARow == 0 {
		a.failures.inARow = 1
		return
	}
	a.wakeFailed("the engine ended soon after its start", "", 0)
}
