// SPDX-License-Identifier: Apache-2.0

// Package wire reads and writes the messages of Envoy's ext_proc and access-log
// streams. What comes and goes for every request is read in place and written by
// hand; all other messages go through the usual codec.
package wire
