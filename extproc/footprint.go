// SPDX-License-Identifier: Apache-2.0

package extproc

// Footprint estimates what the request takes of an engine, in tokens: one for each
// 3.2 bytes of text, and the output that it declares. Media are left out.
func (r *Request) Footprint() int64 {
	return r.TextTokens + max(0, r.MaxTokens, r.MaxCompletionTokens)
}
