// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/json/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// full has another value in each field.
func full() *Record {
	return &Record{
		Time:            time.Date(2026, 11, 29, 21, 0, 0, 123_999_999, time.FixedZone("", 3600)),
		RequestID:       "6f9619ff-8b86-4d11-b42d-00cf4fc964ff",
		ClientRequestID: "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d",
		TraceID:         "4bf92f3577b34da6a3ce929d0e0e4736",
		TenantID:        "acme", KeyID: "acme-prod", Model: "llama-3-70b", Kind: "chat", Path: "/v1/chat/completions",
		Decision: Hold, Outcome: "released", Status: 503, WireStatus: 200, ErrorCode: "model_waking",
		AgentID: "gpu-1", Upstream: netip.MustParseAddrPort("10.0.0.1:8000"), Attempts: 2,
		Held: 41*time.Second + 999*time.Microsecond, Queued: 7 * time.Millisecond, Duration: 43 * time.Second,
		BytesIn: 1234, BytesOut: 1 << 40, TokensIn: 12, TokensOut: 34, SourceIP: netip.MustParseAddr("2001:db8::1"),
	}
}

func TestALineIsExact(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{"time":"2026-11-29T20:00:00.123Z","request_id":"6f9619ff-8b86-4d11-b42d-00cf4fc964ff",`+
		`"client_request_id":"0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736",`+
		`"tenant_id":"acme","key_id":"acme-prod","model":"llama-3-70b","kind":"chat","path":"/v1/chat/completions",`+
		`"decision":"hold","outcome":"released","status":503,"wire_status":200,"error_code":"model_waking",`+
		`"agent_id":"gpu-1","upstream":"10.0.0.1:8000","attempts":2,"held_ms":41000,"queued_ms":7,"duration_ms":43000,`+
		`"bytes_in":1234,"bytes_out":1099511627776,"tokens_in":12,"tokens_out":34,"source_ip":"2001:db8::1"}`+"\n", string(full().appendLine(nil)))

	require.Equal(t, `before{"time":"0001-01-01T00:00:00.000Z","request_id":"","client_request_id":"","trace_id":"",`+
		`"tenant_id":"","key_id":"","model":"","kind":"","path":"","decision":"","outcome":"","status":0,"wire_status":0,`+
		`"error_code":"","agent_id":"","upstream":"","attempts":0,"held_ms":0,"queued_ms":0,"duration_ms":0,`+
		`"bytes_in":0,"bytes_out":0,"tokens_in":0,"tokens_out":0,"source_ip":""}`+"\n", string((&Record{}).appendLine([]byte("before"))))
}

// decoded is a line's fields, in the form of the standard library.
func decoded(t require.TestingT, line []byte) map[string]any {
	var fields map[string]any
	require.NoError(t, json.Unmarshal(line, &fields))
	return fields
}

func TestStringsAreEscaped(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ text, want string }{
		"plain":                {"llama-3.1:8b/é日本 <&>'", `llama-3.1:8b/é日本 <&>'`},
		"quotes":               {`a"b\c`, `a\"b\\c`},
		"a second line":        {"a\n{\"status\":200}\r", `a\u000a{\"status\":200}\u000d`},
		"other line ends":      {"a\u0085b\u2028c\u2029d\vf\x1c", `a\u0085b\u2028c\u2029d\u000bf\u001c`},
		"control":              {"\x00\x1b[2J\x7f\u009b", `\u0000\u001b[2J\u007f\u009b`},
		"direction":            {"a\u202eb\u2066", `a\u202eb\u2066`},
		"blanks":               {"\u00a0\ufeff\u200b", `\u00a0\ufeff\u200b`},
		"beyond the BMP":       {"🦙\U000e0001\U0010ffff", `🦙\udb40\udc01\udbff\udfff`},
		"bad bytes":            {"a\xffb\xc3", "a\ufffdb\ufffd"},
		"a surrogate":          {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		"a replacement stands": {"\ufffd", "\ufffd"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, `"`+tt.want+`"`, string(appendQuoted(nil, tt.text)))
			var back string
			require.NoError(t, json.Unmarshal(appendQuoted(nil, tt.text), &back))
			require.Equal(t, string([]rune(tt.text)), back)
		})
	}
}

func TestLongStringsAreCutOnARuneBorder(t *testing.T) {
	t.Parallel()
	x := strings.Repeat("x", 252)
	tests := map[string]struct{ text, want string }{
		"as long as may be": {x + "1234", x + "1234"},
		"one more":          {x + "12345", x + "1234"},
		"two bytes":         {x + "123é", x + "123"},
		"whole two bytes":   {x + "12é3", x + "12é"},
		"three bytes":       {x + "12日", x + "12"},
		"four bytes":        {x + "1🦙", x + "1"},
		"whole four bytes":  {x + "🦙1", x + "🦙"},
		"no runes at all":   {strings.Repeat("\x80", 300), strings.Repeat("\x80", 252)},
		"very long":         {strings.Repeat("x", 1<<20), x + "xxxx"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, cut(tt.text))
		})
	}
}

// TestAnyRecordIsOneLineOfJSON has the standard library read lines of all sorts.
func TestAnyRecordIsOneLineOfJSON(t *testing.T) {
	t.Parallel()
	text := rapid.Custom(func(t *rapid.T) string {
		return rapid.OneOf(
			rapid.String(), rapid.StringN(0, 400, -1),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 400), func(b []byte) string { return string(b) }),
		).Draw(t, "text")
	})
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(text, 12, 12).Draw(t, "texts")
		number := rapid.Int64().Draw(t, "number")
		r := Record{
			RequestID: texts[0], ClientRequestID: texts[1], TraceID: texts[2], TenantID: texts[3], KeyID: texts[4], Model: texts[5],
			Kind: texts[6], Path: texts[7], Decision: Decision(texts[8]), Outcome: texts[9], ErrorCode: texts[10], AgentID: texts[11],
			Status: int(number), Held: time.Duration(number), BytesIn: number,
		}
		line := r.appendLine(nil)
		require.True(t, utf8.Valid(line))
		require.Less(t, len(line), 20_000)
		require.False(t, strings.ContainsFunc(strings.TrimSuffix(string(line), "\n"), func(r rune) bool { return !strconv.IsPrint(r) }))
		fields := decoded(t, line)
		require.Len(t, fields, 25)
		for i, name := range []string{
			"request_id", "client_request_id", "trace_id", "tenant_id", "key_id", "model", "kind", "path", "decision", "outcome", "error_code", "agent_id",
		} {
			require.Equal(t, string([]rune(cut(texts[i]))), fields[name], name)
		}
		require.Contains(t, string(line), `"bytes_in":`+strconv.FormatInt(number, 10)+",")
	})
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "fe80::1%a\"b\n": "fe80::1", "::": "::",
	} {
		fields := decoded(t, (&Record{
			SourceIP: netip.MustParseAddr(in), Upstream: netip.AddrPortFrom(netip.MustParseAddr(in), 80),
		}).appendLine(nil))
		require.Equal(t, want, fields["source_ip"])
		require.Equal(t, netip.AddrPortFrom(netip.MustParseAddr(want), 80).String(), fields["upstream"])
	}
}
