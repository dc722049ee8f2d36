// SPDX-License-Identifier: Apache-2.0

// Package backend has the engines that run elsewhere and have no agent: what the
// configuration says of them, and who looks at them.
//
// For each one goroutine does what an agent beside the engine would do, by the
// agent's own code ([agent.RunBackend]); it registers in memory. What is special is
// that it asks the engine only while somebody waits for one of its models, or uses
// it: a question may be what keeps a serverless engine from going to sleep. So a
// backend that nobody needs is out of routing, whatever it is, and the next request
// is held for as long as one question takes.
package backend
