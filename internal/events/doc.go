// SPDX-License-Identifier: Apache-2.0

// Package events keeps what the router has done lately, for the operator's page and for
// GET /v1/events: which requests were held, released, redirected and refused, and which models
// woke, went to sleep or failed to wake. A request that is served without a wait has no event.
package events
