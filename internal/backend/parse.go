// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdgate/holdgate/agentreg/agent"
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
	"github.com/holdgate/holdgate/sitemap"
)

// Read reads a list of backends. It adds what is invalid to the problems of the file.
func Read(v settings.Value) []Config {
	var all []Config
	first := map[string]string{}
	v.List(func(v settings.Value) {
		c := Config{Engine: engines.Custom, Slots: 1}
		c.read(v)
		if before, again := first[c.Name]; again && c.Name != "" {
			v.Member("name", v.Node).Add("is given twice: %s is the name of %s", v.Quote(c.Name), before)
		}
		first[c.Name] = v.Path
		all = append(all, c)
	})
	return all
}

func (c *Config) read(v settings.Value) {
	var secure []settings.Value
	var kinds settings.Value
	fields := c.Keys("url", "engine", "health_path", "models", "slots", "region", "labels", "host", "pool", "health_model")
	maps.Copy(fields, map[string]func(settings.Value){
		"name":     func(v settings.Value) { c.Name = readID(v) },
		"kinds":    func(v settings.Value) { kinds = v },
		"max_wait": func(v settings.Value) { c.MaxWait = readUpToAnHour(v) },
		"wake":     func(v settings.Value) { c.Wake = ReadWake(v) },
		"sni":      func(v settings.Value) { c.SNI, secure = v.Checked(agent.CheckHost), append(secure, v) },
		"ca_file": func(v settings.Value) {
			c.CAFile, c.caLine, secure = v.Checked(checkAbsolute), v.Line, append(secure, v)
		},
		"not_taken":    func(v settings.Value) { c.NotTaken = readStatuses(v) },
		"api_key_file": func(v settings.Value) { c.APIKeyFile, c.keyLine = v.Name(), v.Line },
	})
	v.Fields(fields, "name", "url")
	if kinds.Node != nil {
		c.ReadKinds(kinds)
	}
	for _, v := range secure {
		if !c.Secure() {
			v.Add("needs a url of https")
		}
	}
	c.Pool = c.Pool || c.PoolLane() != ""
	if c.Pool && c.NotTaken == nil {
		c.NotTaken = []int{http.StatusServiceUnavailable}
	}
}

// readID reads a name that becomes a part of an agent's id.
func readID(v settings.Value) string {
	name := v.Name()
	if name == "" {
		return ""
	}
	if strings.Contains(name, agent.ReplicaMark) {
		v.Add("must not contain %s: the ids of further addresses have it", agent.ReplicaMark)
	}
	if err := protocol.CheckName(protocol.BackendPrefix + name); err != nil {
		v.Add("with %s before it, %s", protocol.BackendPrefix, err.Error())
	}
	return name
}

// checkAbsolute returns an error unless the path of a file, which Envoy reads too, is
// absolute.
func checkAbsolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("must be an absolute path, for Envoy reads it too, is %q", path)
	}
	return nil
}

func readStatuses(v settings.Value) []int {
	statuses := []int{}
	v.List(func(v settings.Value) {
		status := int(v.Number(599))
		if status > 0 && status < http.StatusBadRequest {
			v.Bad("must be a status from 400 to 599")
		}
		statuses = append(statuses, status)
	})
	return statuses
}

func readUpToAnHour(v settings.Value) time.Duration {
	return v.Duration(1, time.Hour, "must be a duration above 0 and at most 1h, such as 240s")
}

// ReadWake reads the webhook that wakes an engine.
func ReadWake(v settings.Value) *sitemap.Wake {
	w := &sitemap.Wake{Method: http.MethodPost}
	v.Fields(map[string]func(settings.Value){
		"url": func(v settings.Value) { w.URL = v.Checked(sitemap.CheckWakeURL) },
		"method": func(v settings.Value) {
			if w.Method = v.Name(); w.Method != http.MethodPost && w.Method != http.MethodGet {
				v.Bad("must be POST or GET")
			}
		},
		"cooldown": func(v settings.Value) { w.Cooldown = readUpToAnHour(v) },
	}, "url")
	return w
}
