// SPDX-License-Identifier: Apache-2.0

// Package backend runs the backends: engines that run elsewhere and have no agent. It parses
// their settings and checks their health.
//
// For each backend one goroutine runs the code of an agent ([agent.RunBackend]), which
// registers over an in-memory connection. Unlike an agent it sends health checks only while
// requests wait for one of the backend's models or are served by it, since a check could
// keep a serverless engine from going to sleep. So a backend without requests is out of
// routing, and its next request is held until one check has succeeded.
package backend
