// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"maps"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
)

const page = "https://app.example.com"

// corsOf are the CORS headers, and vary, of an answer that is not native.
func corsOf(m *extprocv3.ProcessingResponse) map[string]string {
	got := map[string]string{}
	add := func(name string, value []byte) {
		if strings.HasPrefix(name, corsPrefix) || name == headerVary {
			got[name] += string(value)
		}
	}
	for _, h := range m.GetStreamedImmediateResponse().GetHeadersResponse().GetHeaders().GetHeaders() {
		add(h.GetKey(), h.GetRawValue())
	}
	for _, o := range m.GetImmediateResponse().GetHeaders().GetSetHeaders() {
		add(o.GetHeader().GetKey(), o.GetHeader().GetRawValue())
	}
	return got
}

func TestEveryAnswerToAPageHasTheCORSHeaders(t *testing.T) {
	t.Parallel()
	own := map[string]string{headerAllow: page, headerExpose: exposed, headerVary: headerOrigin}
	with := func(name, value string) map[string]string {
		m := maps.Clone(own)
		m[name] = value
		return m
	}
	for name, c := range map[string]struct {
		allowed                     []string
		origin                      string
		committed, relayed, refused map[string]string
		native                      map[string]string // the metadata
	}{
		"an origin": {
			[]string{"https://b", page},
			page, own, with(headerVary, "accept, origin"), own,
			map[string]string{envoy.CORSOriginKey: page, envoy.CORSExposeKey: exposed},
		},
		"all": {
			[]string{"*"},
			page, with(headerAllow, "*"),
			map[string]string{headerAllow: "*", headerExpose: exposed, headerVary: "accept, origin"},
			with(headerAllow, "*"),
			map[string]string{envoy.CORSOriginKey: "*", envoy.CORSExposeKey: exposed},
		},
		"another origin": {
			[]string{page},
			"https://evil",
			map[string]string{},
			map[string]string{headerVary: "accept"},
			map[string]string{},
			map[string]string{envoy.CORSOriginKey: ""},
		},
		"no page": {
			[]string{page},
			"",
			map[string]string{},
			map[string]string{headerVary: "accept"},
			map[string]string{},
			map[string]string{envoy.CORSOriginKey: ""},
		},
		"not configured": {
			nil, page,
			map[string]string{},
			map[string]string{headerVary: "accept", headerAllow: "engine", "access-control-allow-credentials": "true"},
			map[string]string{},
			map[string]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			configured := func(o *Options) { o.CORSOrigins = c.allowed }
			headers := []string{}
			if c.origin != "" {
				headers = []string{headerOrigin, c.origin}
			}
			bubble(t, func(r *rig) {
				t := r.t
				x := r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headers...))
				elapse(interval)
				require.Equal(t, c.committed, corsOf(x.Messages()[0]), "committed")
				x.Reset()

				x = r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headers...))
				r.slots.up(engineA, 1)
				call := r.engine.call(t, 1)
				require.Equal(t, len(c.allowed) == 0 && c.origin != "", call.Header.Get("Origin") != "", "the engine learns of it")
				_ = call.respond(200, "Access-Control-Allow-Origin", "engine", "Access-Control-Allow-Credentials", "true", "Vary", "accept").Close()
				_ = x.End()
				require.Equal(t, c.relayed, corsOf(x.Messages()[0]), "relayed")

				x = r.ask(t, extproctest.Request(chatPath, `{`, headers...))
				_ = x.End()
				require.Equal(t, c.refused, corsOf(x.Messages()[0]), "refused")

				x = r.ask(t, extproctest.Request("/v1/models", "", append(headers, ":method", "GET")...)[:1])
				_ = x.End()
				require.Equal(t, c.refused, corsOf(x.Messages()[0]), "the models API")

				x = r.ask(t, extproctest.Request(chatPath, `{"model":"m"}`, headers...))
				answer := x.Messages()[0]
				metadata := map[string]string{}
				for key, v := range answer.GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields() {
					if strings.HasPrefix(key, "cors_") {
						metadata[key] = v.GetKind().(*structpb.Value_StringValue).StringValue
					}
				}
				require.Equal(t, c.native, metadata)
				common := answer.GetRequestHeaders().GetResponse()
				require.Equal(t, len(c.allowed) > 0, common.GetClearRouteCache())
				require.Equal(t, len(c.allowed) > 0, strings.Contains(strings.Join(common.GetHeaderMutation().GetRemoveHeaders(), " "), headerOrigin))
				x.Reset()
				require.Equal(t, 1, r.endAllNow())
			}, configured)
		})
	}
}
