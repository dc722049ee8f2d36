// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// A manifest that Envoy Gateway does not accept is not written.
func TestWhatWasRefusedIsAnError(t *testing.T) {
	accepted := "httpRoutes:\n- status:\n    parents:\n    - conditions:\n      - {type: Accepted, status: \"STATUS\", reason: R, message: M}\n" +
		"xds:\n  models/public:\n    configs:\n    - {'@type': a}\n    - {'@type': b}\n    - {'@type': c}\n    - {'@type': d}\n" +
		"    - {'@type': type.googleapis.com/envoy.admin.v3.SecretsConfigDump}\n"
	if configs, err := configsOf([]byte(strings.Replace(accepted, "STATUS", "True", 1))); err != nil || len(configs) != 4 {
		t.Errorf("%v, %d parts", err, len(configs))
	}
	for _, status := range []string{"False", "Unknown"} {
		if _, err := configsOf([]byte(strings.Replace(accepted, "STATUS", status, 1))); err == nil || !strings.Contains(err.Error(), "R: M") {
			t.Errorf("%s: %v", status, err)
		}
	}
	if _, err := configsOf([]byte("xds: {a: {configs: [{'@type': a}]}}")); err == nil {
		t.Error("a result without all its parts is accepted")
	}
}
