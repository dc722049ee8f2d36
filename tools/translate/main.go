// SPDX-License-Identifier: Apache-2.0

// Translate writes what Envoy Gateway's own translator makes of the manifests that holdgate
// envoy render prints: the listeners, routes, clusters and endpoints for Envoy. The tests in
// e2e run them in a real Envoy.
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// manifests are the files of internal/manifest/testdata that are translated.
var manifests = []string{"envoy-gateway-socket", "envoy-gateway-endpoint"}

const (
	rendered = "../../internal/manifest/testdata"
	results  = "../../e2e/testdata/envoy-gateway"
	head     = "# What the translator of Envoy Gateway %s makes of internal/manifest/testdata/%s.yaml\n" +
		"# and tools/translate/cluster.yaml. Written by: make translate\n"
)

func main() {
	for _, name := range manifests {
		if err := translate(name); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

func translate(name string) error {
	input, err := inputFor(name)
	if err != nil {
		return err
	}
	defer os.Remove(input)
	text, err := command("go", "tool", "egctl", "experimental", "translate", "--to", "gateway-api,xds", "--output", "yaml", "--file", input)
	if err != nil {
		return err
	}
	version, err := command("go", "list", "-m", "-f", "{{.Version}}", "github.com/envoyproxy/gateway")
	if err != nil {
		return err
	}
	configs, err := configsOf(text)
	if err != nil {
		return err
	}
	out, err := yaml.Marshal(configs)
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	out = append(fmt.Appendf(nil, head, strings.TrimSpace(string(version)), name), out...)
	return os.WriteFile(filepath.Join(results, name+".yaml"), out, 0o644)
}

func command(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running %s %s: %w", name, strings.Join(args, " "), err)
	}
	return out, nil
}

// inputFor writes a manifest together with what it needs in the cluster to a file.
func inputFor(name string) (string, error) {
	manifest, err := os.ReadFile(filepath.Join(rendered, name+".yaml"))
	if err != nil {
		return "", err
	}
	cluster, err := os.ReadFile("cluster.yaml")
	if err != nil {
		return "", err
	}
	secret, err := secretObject()
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp("", "manifests-*.yaml")
	if err != nil {
		return "", err
	}
	_, err = file.Write(bytes.Join([][]byte{manifest, cluster, secret}, []byte("---\n")))
	return file.Name(), errors.Join(err, file.Close())
}

// secretObject returns the Secret with the gateway's certificate, which the translator reads.
// It is made for this call, and is not in the result.
func secretObject() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	encode := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	public := encode("CERTIFICATE", certificate)
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Secret\nmetadata: {name: holdgate-client, namespace: models}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s, ca.crt: %s}\n",
		public, encode("PRIVATE KEY", private), public), nil
}

// configsOf returns the parts of the result that are for Envoy, without the bootstrap and
// the secrets. It fails if an object was not accepted.
func configsOf(text []byte) ([]any, error) {
	var result map[string]any
	if err := yaml.Unmarshal(text, &result); err != nil {
		return nil, fmt.Errorf("decoding the result: %w", err)
	}
	if err := refused(result, ""); err != nil {
		return nil, err
	}
	gateways, _ := result["xds"].(map[string]any)
	if len(gateways) != 1 {
		return nil, fmt.Errorf("%d gateways in the result", len(gateways))
	}
	var kept []any
	for _, gateway := range gateways {
		configs, _ := gateway.(map[string]any)["configs"].([]any)
		for _, c := range configs {
			switch kind, _ := c.(map[string]any)["@type"].(string); kind {
			case "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "type.googleapis.com/envoy.admin.v3.SecretsConfigDump":
			default:
				kept = append(kept, c)
			}
		}
	}
	if len(kept) != 4 {
		return nil, fmt.Errorf("%d kinds of resources in the result instead of endpoints, clusters, listeners and routes", len(kept))
	}
	return kept, nil
}

// refused returns an error for each condition below v that is not True.
func refused(v any, path string) error {
	switch v := v.(type) {
	case []any:
		var problems []error
		for i, item := range v {
			problems = append(problems, refused(item, fmt.Sprintf("%s[%d]", path, i)))
		}
		return errors.Join(problems...)
	case map[string]any:
		if status, ok := v["status"].(string); ok && v["reason"] != nil && status != "True" {
			return fmt.Errorf("%s: %v: %v", path, v["reason"], v["message"])
		}
		var problems []error
		for key, item := range v {
			problems = append(problems, refused(item, path+"."+key))
		}
		return errors.Join(problems...)
	}
	return nil
}
