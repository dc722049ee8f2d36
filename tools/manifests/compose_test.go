// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads a compose file as Docker Compose does, which checks it by the schema of the compose
// specification, and that the services, volumes and secrets that it names exist.
func load(t *testing.T, text string) (*types.Project, error) {
	t.Helper()
	dir := filepath.Join(top, "examples", "compose")
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml"), Content: []byte(text)}},
		Environment: map[string]string{"MODEL": "model.gguf"},
	}, loader.WithProfiles([]string{"monitoring"}))
}

func composeFile(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "examples", "compose", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The compose file is valid. Its services have no rights that they do not need and no settings in
// their environment, the ports are open on this machine only, and the files that it mounts exist.
func TestOurComposeFile(t *testing.T) {
	project, err := load(t, composeFile(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(project.Services) != 6 {
		t.Fatalf("%d services", len(project.Services))
	}
	for name, s := range project.Services {
		if len(s.Environment) > 0 || len(s.EnvFiles) > 0 {
			t.Errorf("%s: has an environment, which others can read: use files", name)
		}
		if !s.ReadOnly || s.User == "" || s.Privileged || len(s.CapAdd) > 0 || len(s.CapDrop) != 1 {
			t.Errorf("%s: is not restricted", name)
		}
		if s.Restart == types.RestartPolicyUnlessStopped && name != "prometheus" && s.HealthCheck == nil {
			t.Errorf("%s: has no health check", name)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %d is open to others", name, p.Target)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind || strings.HasSuffix(v.Source, "model.gguf") || strings.HasSuffix(v.Source, "bin/holdgate") {
				continue // a volume, or made by the user
			}
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s: mounts %s: %v", name, v.Source, err)
			}
		}
	}
}

// Each of these faults is found.
func TestAWrongComposeFile(t *testing.T) {
	for right, wrong := range map[string]string{
		"stop_grace_period: 40s":        "stop_grace: 40s",
		"interval: 10s":                 "interval: soon",
		"source: sockets,":              "source: socket,",
		"map: {condition: service_comp": "maps: {condition: service_comp",
		"profiles: [monitoring]":        "profiles: monitoring",
	} {
		text := composeFile(t)
		if !strings.Contains(text, right) {
			t.Fatal("the file lacks", right)
		}
		if _, err := load(t, strings.Replace(text, right, wrong, 1)); err == nil {
			t.Errorf("%s was not refused", wrong)
		}
	}
}
