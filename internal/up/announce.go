// SPDX-License-Identifier: Apache-2.0

package up

import (
	"encoding/json/v2"
	"fmt"
	"net/url"
	"strings"

	"github.com/holdgate/holdgate/sitemap"
)

// announce tells the user what there is and what to try.
func (r *run) announce() {
	base := &url.URL{Scheme: "http", Host: r.envoy.EdgeAddr()}
	if r.EdgeCertFile != "" {
		base.Scheme = "https"
	}
	fmt.Fprintf(r.Out, "Holdgate listens on %s; metrics on http://%s/metrics; logs in %s\n", base, r.ports.Admin, r.Dir)
	status := r.Program + " status"
	if r.ports.Admin != usualAdmin {
		status += " --admin http://" + r.ports.Admin
	}
	fmt.Fprintf(r.Out, "What runs: %s\n", status)
	fmt.Fprintln(r.Out, "Each model sleeps until it is asked. Try:")
	for i := range r.File.Models {
		fmt.Fprintf(r.Out, "  %s\n", r.File.Models[i].curl(base))
	}
	fmt.Fprintln(r.Out, "Ctrl-C ends everything.")
}

// curl is a line to try a model with.
func (m *Model) curl(base *url.URL) string {
	path, body := "/v1/chat/completions", map[string]any{
		"messages": []map[string]string{{"role": "user", "content": "Say hello."}},
	}
	switch m.Kinds[0] {
	case sitemap.Embedding.String():
		path, body = "/v1/embeddings", map[string]any{"input": "hello"}
	case sitemap.Rerank.String():
		path, body = "/v1/rerank", map[string]any{"query": "hello", "documents": []string{"hi", "bye"}}
	}
	body["model"] = m.Name
	text, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("curl %s -H 'content-type: application/json' -d %s", base.JoinPath(path), quoted(string(text)))
}

// quoted is a word of a shell that is easy to read.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
