// SPDX-License-Identifier: Apache-2.0

// Manifests validates Kubernetes manifests without a cluster: YAML files, - for standard
// input, and the blocks of Markdown pages that are marked as yaml and have an apiVersion. It
// knows the kinds of Kubernetes, the Gateway API, Envoy Gateway, KEDA, Istio and the
// InferencePool, with the rules in CEL that an API server would apply.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run validates the files and prints how many objects each has.
func run(files []string, stdin io.Reader, out io.Writer) error {
	var more []fs.FS
	if len(files) > 1 && files[0] == "-crds" {
		more, files = append(more, os.DirFS(files[1])), files[2:]
	}
	if len(files) == 0 {
		return errors.New("name files to validate; - is standard input. -crds DIR before them has definitions that replace others")
	}
	v, err := newValidator(more...)
	if err != nil {
		return err
	}
	var problems []error
	for _, file := range files {
		text, err := read(file, stdin)
		if err != nil {
			return err
		}
		documents, err := objects(file, text)
		if err == nil && len(documents) == 0 {
			err = errors.New("has no object")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", file, err))
			continue
		}
		for _, d := range documents {
			if err := v.check(d.text); err != nil {
				problems = append(problems, fmt.Errorf("%s, line %d: %w", file, d.line, err))
			}
		}
		fmt.Fprintf(out, "%s: %d objects\n", file, len(documents))
	}
	return errors.Join(problems...)
}

func read(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("reading standard input: %w", err)
		}
		return text, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading what to validate: %w", err)
	}
	return text, nil
}
