// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema of a map. What it accepts Parse may still
// refuse: the description of the schema says which rules it cannot express.
func Schema() []byte {
	return slices.Clone(schema)
}
