// SPDX-License-Identifier: Apache-2.0

package up

import (
	"encoding/json/v2"
	"fmt"
	"net/url"
	"strings"

	"github.com/holdgate/holdgate/internal/target"
)

// announce prints the addresses, and for each model a command that sends it a request.
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
	fmt.Fprintf(r.Out, "Watch it: http://%s/ or %s\n", r.ports.Admin, status)
	fmt.Fprintln(r.Out, "Each model sleeps until its first request. Try:")
	for i := range r.File.Models {
		fmt.Fprintf(r.Out, "  %s\n", r.File.Models[i].curl(base))
	}
	fmt.Fprintln(r.Out, "Ctrl-C ends everything.")
}

// curl returns a command line that sends a request to the model.
func (m *Model) curl(base *url.URL) string {
	path, rest := "/v1/chat/completions", `"messages":[{"role":"user","content":"Say hello."}]`
	switch m.Kinds[0] {
	case target.Embedding.String():
		path, rest = "/v1/embeddings", `"input":"hello"`
	case target.Rerank.String():
		path, rest = "/v1/rerank", `"query":"hello","documents":["hi","bye"]`
	}
	name, err := json.Marshal(m.Name)
	if err != nil {
		return ""
	}
	body := fmt.Sprintf(`{"model":%s,%s}`, name, rest)
	return fmt.Sprintf("curl %s -H 'content-type: application/json' -d %s", base.JoinPath(path), shellQuote(body))
}

// shellQuote returns s in single quotes, as one word of a shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
