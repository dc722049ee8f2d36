// SPDX-License-Identifier: Apache-2.0

package sitemap

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema of a map. Parse may refuse a map that the schema accepts:
// the schema's description lists the rules that it cannot express.
func Schema() []byte {
	return slices.Clone(schema)
}
