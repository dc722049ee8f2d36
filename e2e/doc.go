// SPDX-License-Identifier: Apache-2.0

// Package e2e contains the tests with a real Envoy: the cases of docs/cases.md, the
// official clients, and the commands as users run them. They have the build tag e2e,
// and `make e2e` runs them.
package e2e
