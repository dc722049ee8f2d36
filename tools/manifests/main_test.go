// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const top = "../.."

// shared is one validator for all tests, because the definitions take seconds to read.
var shared = sync.OnceValues(func() (*objectValidator, error) { return newValidator() })

func start(t *testing.T) *objectValidator {
	t.Helper()
	v, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// found returns the files below a directory with one of the endings.
func found(t *testing.T, dir string, endings ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(top, dir), func(path string, d fs.DirEntry, err error) error {
		for _, ending := range endings {
			if err == nil && !d.IsDir() && strings.HasSuffix(path, ending) {
				files = append(files, path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Every manifest that we print, ship as an example or show on a page is valid.
func TestOurManifests(t *testing.T) {
	v := start(t)
	files := found(t, "internal/manifest/testdata", ".yaml")
	if len(files) < 10 {
		t.Fatalf("only %d rendered manifests", len(files))
	}
	files = append(files, found(t, "examples", ".yaml", ".md")...)
	files = append(files, found(t, "docs", ".md")...)
	files = append(files, filepath.Join(top, "README.md"))
	kinds := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(file) == ".yaml" && !bytes.Contains(text, []byte("\napiVersion:")) {
			continue // a configuration file of Holdgate
		}
		documents, err := objects(file, text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, d := range documents {
			if err := v.check(d.text); err != nil {
				t.Errorf("%s, line %d: %v", file, d.line, err)
			}
			for l := range strings.Lines(string(d.text)) {
				if kind, ok := strings.CutPrefix(l, "kind: "); ok {
					kinds[strings.TrimSpace(kind)] = true
				}
			}
		}
	}
	for _, kind := range []string{"EnvoyExtensionPolicy", "EnvoyFilter", "InferencePool", "ScaledObject", "Deployment", "HTTPRoute", "DestinationRule"} {
		if !kinds[kind] {
			t.Errorf("no %s was found: is it validated at all?", kind)
		}
	}
}

// Each change makes a good manifest bad, and is found.
func TestABadManifestIsRefused(t *testing.T) {
	v := start(t)
	for _, c := range []struct{ file, old, new, want string }{
		{"envoy-gateway.yaml", "failOpen: false", "failOpen: true", "FailOpen must be false"},
		{"envoy-gateway.yaml", "messageTimeout:", "messageTimeouts:", "unknown field"},
		{"envoy-gateway.yaml", "body: FullDuplexStreamed", "body: FullDuplex", "supported values"},
		{"envoy-gateway.yaml", "writableNamespaces: [holdgate]", "writableNamespaces: [envoy.filters.http.jwt_authn]", "well-known Envoy HTTP filter namespaces"},
		{"envoy-gateway.yaml", "kind: HTTPRoute, name: models}", "kind: Service, name: models}", "targetRefs[*].kind"},
		{"envoy-gateway.yaml", "port: 9001", "port: 99001", "65535"},
		{"envoy-gateway.yaml", "streamIdleTimeout: 3660s", "streamIdleTimeout: 1.5s", "should match"},
		{"envoy-gateway-socket.yaml", "/run/holdgate/extproc.sock", "/" + strings.Repeat("a", 108), "must not exceed 108"},
		{"envoy-gateway-endpoint.yaml", "extractFrom:", "extractFrm:", "unknown field"},
		{"envoy-gateway-socket.yaml", "parentRefs:", "parents:", "unknown field"},
		{"istio.yaml", "operation: INSERT_BEFORE", "operation: INSERT", "supported values"},
		{"istio.yaml", "applyTo: CLUSTER", "applyto: CLUSTER", "unknown field"},
		{"istio.yaml", "subFilter:", "subfilter:", "unknown field"},
		{"llm-d.yaml", "mode: MUTUAL", "mode: MUTAL", "supported values"},
		{"llm-d.yaml", "endpointPickerRef:", "extensionRef:", "unknown field"},
		{"llm-d.yaml", "    port: {number: 9001}\n", "", "a Service needs a port"},
		{"llm-d.yaml", "targetPorts: [{number: 8000}]", "targetPorts: [{number: 8000}, {number: 8000}]", "the ports must differ"},
	} {
		text, err := os.ReadFile(filepath.Join(top, "internal/manifest/testdata", c.file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), c.old) {
			t.Fatalf("%s has no %s", c.file, c.old)
		}
		var problems []string
		for _, d := range split(strings.Replace(string(text), c.old, c.new, 1), 1) {
			if err := v.check(d.text); err != nil {
				problems = append(problems, err.Error())
			}
		}
		if all := strings.Join(problems, "\n"); len(problems) != 1 || !strings.Contains(strings.ToLower(all), strings.ToLower(c.want)) {
			t.Errorf("%s with %q: want one problem with %q, got %d: %s", c.file, c.new, c.want, len(problems), all)
		}
	}
}

func TestPagesAndDocumentsAreSplitWhereTheyEnd(t *testing.T) {
	page := "text\n\n```yaml\na: 1\n```\n\n```yaml\n# x\napiVersion: v1\nkind: A\n---\n# nothing\n---\napiVersion: v1\nkind: B\n```\n```\napiVersion: no\n```\n"
	documents, err := objects("page.md", []byte(page))
	if err != nil {
		t.Fatal(err)
	}
	if len(documents) != 2 || documents[0].line != 8 || documents[1].line != 14 || !strings.Contains(string(documents[1].text), "kind: B") {
		t.Errorf("%+v", documents)
	}
	for _, bad := range []string{"```yaml\napiVersion: v1\n", "  ```yaml\n  apiVersion: v1\n  ```\n"} {
		if _, err := objects("page.md", []byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func pool(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("inferencepool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRunReadsStandardInputAndFailsWithoutAnObject(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(top, "internal/manifest/testdata/istio.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run([]string{"-"}, bytes.NewReader(good), &out); err != nil || out.String() != "-: 1 objects\n" {
		t.Errorf("%v: %s", err, &out)
	}
	// Other definitions replace those that there are.
	crds := t.TempDir()
	if err := os.WriteFile(filepath.Join(crds, "crd.yaml"), []byte(strings.NewReplacer(
		"inferencepools", "envoyfilters", "InferencePool", "EnvoyFilter", "inferencepool", "envoyfilter", "inference.networking.k8s.io", "networking.istio.io", "name: v1\n", "name: v1alpha3\n",
	).Replace(pool(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-crds", crds, "-"}, bytes.NewReader(good), &out); err == nil || !strings.Contains(err.Error(), "unknown field") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "# nothing\n", "a: 1\n", "apiVersion: v1\nkind: Nothing\n", "{"} {
		if err := run([]string{"-"}, strings.NewReader(bad), &out); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if err := run(nil, strings.NewReader(""), &out); err == nil {
		t.Error("no file is accepted")
	}
}
