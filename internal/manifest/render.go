// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"
)

//go:embed templates/*.yaml
var files embed.FS

var templates = template.Must(template.New("").Option("missingkey=error").ParseFS(files, "templates/*.yaml"))

// Render returns the manifests for c: YAML documents with comments. Where c is bad, the
// error is settings.Problems: every problem, by the field's name.
func Render(c Config) ([]byte, error) {
	v, err := c.check()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, v.template(), v); err != nil {
		return nil, fmt.Errorf("rendering the manifests: %w", err)
	}
	return out.Bytes(), nil
}

// template returns the name of the file with the objects of v.
func (v view) template() string {
	switch {
	case v.pooled():
		return "pool.yaml"
	case v.For == Istio || v.For == LLMD:
		return "istio.yaml"
	default:
		return "envoy-gateway.yaml"
	}
}
