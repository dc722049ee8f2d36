// SPDX-License-Identifier: Apache-2.0

// Package body stores and reads the bodies of requests. One scanner reads a body in a
// single pass, whatever its coding and wherever the boundaries of its chunks are: it checks
// the JSON, reads the fields that the decision needs, and measures the text. The package
// also decodes the answers of engines, and reads in passing how many tokens they had.
package body
