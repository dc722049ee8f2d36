// SPDX-License-Identifier: Apache-2.0

// Package policy reads the policy file: the aliases of models, the limits of the admission
// gate, and the steps by which a request gets a replica. A Policy is immutable and safe for
// concurrent use. A nil Policy is the policy of a router without a file.
package policy
