// SPDX-License-Identifier: Apache-2.0

// Package policy reads the policy file: what a model is also called, and how
// many requests of it may run at once and where. A Policy never changes once it
// was read, so it may be used by many at the same time; a nil one is the policy
// of a router without a file.
package policy
