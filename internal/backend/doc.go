// SPDX-License-Identifier: Apache-2.0

// Package backend runs the backends: engines that run elsewhere and have no agent. It has
// their settings and checks their health.
//
// For each backend one goroutine runs the code of an agent ([agent.RunBackend]), which
// registers in memory. Unlike an agent it sends health checks only while requests wait for
// one of the backend's models, or use it: a check could keep a serverless engine from going
// to sleep. So a backend that nobody needs is out of routing, and the next request is held
// for as long as one check takes.
package backend
