// SPDX-License-Identifier: Apache-2.0

// Package herd has only tests: what happens when a wake releases thousands of
// requests and replicas come one by one. They run in bubbles of testing/synctest, so
// that minutes pass in seconds, against the real hold machine, the real registry,
// whose agents speak gRPC, the real admission gate and the real ext_proc server.
//
//	go test ./bench/herd -v
//
// prints the fairness table of docs/performance.md.
package herd
