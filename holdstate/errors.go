// SPDX-License-Identifier: Apache-2.0

package holdstate

import "errors"

// Why a request cannot wait, or waited and got no slot. internal/refusal has the response
// for each of them.
var (
	// ErrFull means that a limit of held requests is reached, by count or by bytes.
	ErrFull = errors.New("too many requests are waiting")
	// ErrDraining means that the router is shutting down.
	ErrDraining = errors.New("the router is shutting down")
	// ErrExpired means that the hold budget ended before a replica was up.
	ErrExpired = errors.New("the hold budget ended before a replica was up")
	// ErrWakeFailed means that the wake of the model failed. A *FailedError, which has the
	// reason, unwraps to it.
	ErrWakeFailed = errors.New("the wake failed")
	// ErrNoQueue means that the capacity queue is full or switched off.
	ErrNoQueue = errors.New("the capacity queue is full")
	// ErrGateFull means that the request got no reservation of the admission gate in time.
	ErrGateFull = errors.New("the admission gate is full")
	// ErrTimeout means that no slot became free in time.
	ErrTimeout = errors.New("no slot became free in time")
)

// Why a request can never get a reservation or a slot. Claim.Admit returns these errors.
var (
	// ErrTooLarge means that the footprint is larger than the token budget of all replicas.
	ErrTooLarge = errors.New("the request is larger than the token budget of all replicas")
	// ErrOverShare means that the request does not fit in what is left of its key's share.
	ErrOverShare = errors.New("the key has its share of the model in use")
	// ErrOverShareAlways means that the request is larger than the share of its key.
	ErrOverShareAlways = errors.New("the request is larger than the share of its key")
	// ErrTriesUsed means that no step of the policy has tries left for the request.
	ErrTriesUsed = errors.New("the tries of all steps are used up")
)

// FailedError is the error of a wake that failed less than a cooldown ago.
type FailedError struct{ Reason string }

func (e *FailedError) Error() string { return ErrWakeFailed.Error() + ": " + e.Reason }

// Unwrap returns ErrWakeFailed.
func (*FailedError) Unwrap() error { return ErrWakeFailed }

// Why returns why a waiter ended without a slot, as one of the errors above. It is nil
// while the waiter waits, when its client left, and when the request has to be decided
// again.
func (s Status) Why() error {
	switch s.Outcome {
	case OutcomeExpired:
		return ErrExpired
	case OutcomeDraining:
		return ErrDraining
	case OutcomeWakeFailed:
		return &FailedError{Reason: s.Reason}
	case OutcomeReleased:
		return s.Err
	default:
		return nil
	}
}
