// SPDX-License-Identifier: Apache-2.0

// Package body holds the bodies of requests. One scanner reads a body in a single
// pass, whatever its coding and wherever its chunks are cut: it checks the JSON, finds
// the fields that the decision needs, and measures the text. The package also decodes
// the answers of engines.
package body
