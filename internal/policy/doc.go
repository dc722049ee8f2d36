// SPDX-License-Identifier: Apache-2.0

// Package policy reads the policy file. For each model it has aliases, limits of the
// admission gate, and steps, which are groups of replicas in the order of preference. A
// Policy is immutable and safe for concurrent use. Without a file the Policy is nil.
package policy
