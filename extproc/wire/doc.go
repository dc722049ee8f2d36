// SPDX-License-Identifier: Apache-2.0

// Package wire decodes and encodes the messages of Envoy's ext_proc and access-log streams.
// Messages that every request has are read in place and encoded by hand; all others go
// through gRPC's usual codec.
package wire
