// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"net/netip"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Decision is the decision about a request when its headers arrived.
type Decision string

// The decisions.
const (
	Serve    Decision = "serve"
	Redirect Decision = "redirect"
	Hold     Decision = "hold"
	Refuse   Decision = "refuse"
)

// Record is the record of a finished request. Each line has all fields, in this order; a
// field that is not known is empty or 0.
type Record struct {
	Time            time.Time // written in UTC, in milliseconds
	RequestID       string
	ClientRequestID string
	TraceID         string
	TenantID        string
	KeyID           string
	Model           string
	Kind            string
	Path            string
	Decision        Decision
	Outcome         string // of a hold
	Status          int    // the final status, even if the client had already been sent another
	WireStatus      int    // the status that the client was sent; 0: none
	ErrorCode       string
	AgentID         string
	Upstream        netip.AddrPort
	Attempts        int
	Held            time.Duration // durations are written in whole milliseconds
	Queued          time.Duration
	Duration        time.Duration
	BytesIn         int64
	BytesOut        int64
	TokensIn        int64
	TokensOut       int64
	SourceIP        netip.Addr
}

const (
	maxString  = 256 // the longest string that is written, in bytes before escaping
	timeFormat = "2006-01-02T15:04:05.000Z07:00"
)

// line is a line while it is formatted.
type line struct{ b []byte }

// appendLine adds the record's line to b.
func (r *Record) appendLine(b []byte) []byte {
	l := line{b}
	l.b = append(l.b, `{"time":"`...)
	l.b = r.Time.UTC().AppendFormat(l.b, timeFormat)
	l.b = append(l.b, '"')
	l.text("request_id", r.RequestID)
	l.text("client_request_id", r.ClientRequestID)
	l.text("trace_id", r.TraceID)
	l.text("tenant_id", r.TenantID)
	l.text("key_id", r.KeyID)
	l.text("model", r.Model)
	l.text("kind", r.Kind)
	l.text("path", r.Path)
	l.text("decision", string(r.Decision))
	l.text("outcome", r.Outcome)
	l.number("status", int64(r.Status))
	l.number("wire_status", int64(r.WireStatus))
	l.text("error_code", r.ErrorCode)
	l.text("agent_id", r.AgentID)
	l.address("upstream", r.Upstream)
	l.number("attempts", int64(r.Attempts))
	l.number("held_ms", r.Held.Milliseconds())
	l.number("queued_ms", r.Queued.Milliseconds())
	l.number("duration_ms", r.Duration.Milliseconds())
	l.number("bytes_in", r.BytesIn)
	l.number("bytes_out", r.BytesOut)
	l.number("tokens_in", r.TokensIn)
	l.number("tokens_out", r.TokensOut)
	l.ip("source_ip", r.SourceIP)
	return append(l.b, "}\n"...)
}

func (l *line) name(name string) {
	l.b = append(l.b, `,"`...)
	l.b = append(l.b, name...)
	l.b = append(l.b, `":`...)
}

func (l *line) number(name string, n int64) {
	l.name(name)
	l.b = strconv.AppendInt(l.b, n, 10)
}

func (l *line) text(name, s string) {
	l.name(name)
	l.b = appendQuoted(l.b, cut(s))
}

func (l *line) address(name string, a netip.AddrPort) {
	l.name(name)
	l.b = append(l.b, '"')
	if a.IsValid() {
		l.b = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()).AppendTo(l.b)
	}
	l.b = append(l.b, '"')
}

func (l *line) ip(name string, a netip.Addr) {
	l.name(name)
	l.b = append(l.b, '"')
	if a.IsValid() {
		l.b = a.Unmap().WithZone("").AppendTo(l.b)
	}
	l.b = append(l.b, '"')
}

// cut returns at most maxString bytes of s, without splitting a rune.
func cut(s string) string {
	if len(s) <= maxString {
		return s
	}
	end := maxString
	for end > maxString-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// appendQuoted appends s as a JSON string. It escapes everything that is not printable, more
// than JSON requires: a string from a client must not move a terminal's cursor, change the
// direction of the text after it, or end the line for some readers.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s { // an invalid byte is U+FFFD
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case strconv.IsPrint(r):
			b = utf8.AppendRune(b, r)
		case r <= 0xffff:
			b = appendEscape(b, r)
		default:
			high, low := utf16.EncodeRune(r)
			b = appendEscape(appendEscape(b, high), low)
		}
	}
	return append(b, '"')
}

func appendEscape(b []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[r>>12&0xf], hex[r>>8&0xf], hex[r>>4&0xf], hex[r&0xf])
}
