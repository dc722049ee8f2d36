// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing/fstest"

	envoygateway "github.com/envoyproxy/gateway"
	_ "github.com/kedacore/keda/v2/version" // the module has the definitions of KEDA
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istiov1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/kubectl-validate/pkg/cmd"
	"sigs.k8s.io/kubectl-validate/pkg/openapiclient"
	"sigs.k8s.io/kubectl-validate/pkg/validator"
	"sigs.k8s.io/yaml"
)

// kubernetes is the newest version whose own kinds kubectl-validate has.
const kubernetes = "1.32"

//go:embed inferencepool.yaml
var ours embed.FS

// istioKinds are the messages of Istio's objects. Its definitions leave the values of an
// EnvoyFilter open, and a message has no field that its definition lacks.
var istioKinds = map[string]func() proto.Message{
	"EnvoyFilter":     func() proto.Message { return &istiov1alpha3.EnvoyFilter{} },
	"DestinationRule": func() proto.Message { return &istiov1alpha3.DestinationRule{} },
	"ServiceEntry":    func() proto.Message { return &istiov1alpha3.ServiceEntry{} },
	"VirtualService":  func() proto.Message { return &istiov1alpha3.VirtualService{} },
}

type objectValidator struct{ kinds *validator.Validator }

// newValidator reads the definitions of all kinds, from Go modules, from here, and from more,
// which replace others.
func newValidator(more ...fs.FS) (*objectValidator, error) {
	keda, err := moduleFiles("github.com/kedacore/keda/v2", "config/crd/bases")
	if err != nil {
		return nil, err
	}
	istio, err := moduleFiles("istio.io/api", "kubernetes")
	if err != nil {
		return nil, err
	}
	gateway := fstest.MapFS{"gateway.yaml": &fstest.MapFile{Data: envoygateway.GatewayCRDs}}
	kinds, err := validator.New(openapiclient.NewComposite(
		openapiclient.NewLocalCRDFiles(append([]fs.FS{gateway, keda, istio, ours}, more...)...),
		openapiclient.NewOverlay(openapiclient.HardcodedPatchLoader(kubernetes), openapiclient.NewHardcodedBuiltins(kubernetes)),
	))
	if err != nil {
		return nil, fmt.Errorf("reading the definitions: %w", err)
	}
	return &objectValidator{kinds}, nil
}

// moduleFiles returns a directory of a Go module that go.mod requires.
func moduleFiles(module, dir string) (fs.FS, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("finding the module %s: %w", module, err)
	}
	path := filepath.Join(strings.TrimSpace(string(root)), dir)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("looking into the module %s: %w", module, err)
	}
	return os.DirFS(path), nil
}

// check returns what is wrong with an object.
func (v *objectValidator) check(text []byte) error {
	if err := cmd.ValidateDocument(text, v.kinds); err != nil {
		return err
	}
	return checkIstio(text)
}

// checkIstio decodes an object of Istio into its message and accepts no other field.
func checkIstio(text []byte) error {
	var object struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Spec       json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		return fmt.Errorf("reading the object: %w", err)
	}
	if !strings.HasPrefix(object.APIVersion, "networking.istio.io/") {
		return nil
	}
	message, known := istioKinds[object.Kind]
	if !known {
		return fmt.Errorf("%s of Istio: add its message to istioKinds", object.Kind)
	}
	if err := protojson.Unmarshal(object.Spec, message()); err != nil {
		return fmt.Errorf("decoding the spec: %w", err)
	}
	return nil
}
