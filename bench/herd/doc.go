// SPDX-License-Identifier: Apache-2.0

// Package herd has only tests: they cover a wake that releases thousands of requests
// while replicas join one by one. They run in bubbles of testing/synctest, so that
// minutes pass in seconds, with the real hold machine, the real registry, whose agents
// use gRPC, the real admission gate and the real ext_proc server.
//
//	go test ./bench/herd -v
//
// prints the fairness table of docs/performance.md.
package herd
