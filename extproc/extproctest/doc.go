// SPDX-License-Identifier: Apache-2.0

// Package extproctest has what the tests of extproc and of its subpackages share.
package extproctest
