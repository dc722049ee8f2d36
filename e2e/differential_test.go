// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// differentialBatch is below the number of requests that one model may have waiting.
const differentialBatch = 60

// sample is one generated request, and the engine's answer to it.
type sample struct {
	name   string
	shape  bodyShape
	path   string
	header http.Header
	body   string
	stream bool

	status int
	answer string // as sent on the wire
	text   string // its body
}

// newSample generates the sample of a number.
func newSample(t *testing.T, n uint64) *sample {
	t.Helper()
	r := rand.New(rand.NewPCG(n, 1))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	size := func() int { return r.IntN(1 << (1 + r.IntN(18))) }
	s := &sample{name: strconv.FormatUint(n, 10), header: http.Header{}, stream: r.IntN(2) == 0}
	s.shape = bodyShape{http2: r.IntN(2) == 0, known: r.IntN(2) == 0, trailers: r.IntN(3) == 0}
	if !s.shape.http2 && s.shape.known {
		s.shape.trailers = false // HTTP/1.1 has them only behind chunks
	}
	s.path = pick(chatPath, "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank") + pick("", "?a=b", "?q=%20%2F+&q=", "?")

	fields := map[string]any{
		"model": "m", "stream": s.stream, "x": strings.Repeat(pick("x", "ü", "\"\\", "\n", "日"), size()/4),
		"deep": map[string]any{"model": "other", "list": []any{1.5, nil, true, "\x00", strings.Repeat("[", r.IntN(50))}},
	}
	plain, err := json.Marshal(fields)
	require.NoError(t, err)
	coding := pick("", "", "gzip", "zstd", "br")
	s.body = coded(t, coding, string(plain)+strings.Repeat(pick(" ", "\n"), r.IntN(3)))

	s.header.Set("Content-Type", "application/json")
	if coding != "" {
		s.header.Set("Content-Encoding", coding)
	}
	s.header.Set("X-Sample", s.name)
	s.header.Set("User-Agent", "differential/1")
	for i := range r.IntN(20) {
		s.header.Add(fmt.Sprintf("X-H-%d", r.IntN(10)), pick("", "1", "a, b", "naïve", strings.Repeat("v", size()/64), "\"quoted\"; q=0.5")+strconv.Itoa(i))
	}

	s.status = []int{200, 200, 200, 201, 400, 404, 422, 429, 500, 503}[r.IntN(10)]
	s.text = strings.Repeat(pick("y", "data: {}\n\n", "{\"a\":[1]}", "é"), size()/4)
	if !s.stream || s.status >= 400 {
		s.text = `{"error":{"message":"` + s.name + `"},"pad":"` + strings.Repeat("z", size()/8) + `"}` // an error's text is read up to 64 KiB
	}
	head := fmt.Sprintf("HTTP/1.1 %d Some Reason\r\nx-engine: %s\r\nx-multi: a\r\nx-multi: b\r\n", s.status, pick("", "own", "ü"))
	head += "content-type: " + pick("application/json", "text/event-stream", "text/plain; charset=utf-8") + "\r\n"
	if r.IntN(2) == 0 {
		s.answer = fmt.Sprintf("%scontent-length: %d\r\n\r\n%s", head, len(s.text), s.text)
		return s
	}
	s.answer = head + "transfer-encoding: chunked\r\n\r\n"
	for rest := s.text; rest != ""; {
		piece := rest[:1+r.IntN(len(rest))]
		s.answer += fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
		rest = rest[len(piece):]
	}
	s.answer += "0\r\n\r\n"
	return s
}

func coded(t *testing.T, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "br":
		w = brotli.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		require.NoError(t, err)
		w = z
	default:
		return text
	}
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// differential sends samples to one engine over several paths.
type differential struct {
	t       *testing.T
	engine  *exactEngine
	samples []*sample
	clients map[bool]*http.Client // by HTTP/2
	heads   atomic.Int64          // the number of answers that have begun
}

func newDifferential(t *testing.T, from uint64) *differential {
	t.Helper()
	d := &differential{t: t, clients: map[bool]*http.Client{false: newHTTPClient(t), true: newHTTP2Client(t)}}
	for _, c := range d.clients {
		c.Transport.(*http.Transport).DisableCompression = true
	}
	answers := map[string]string{}
	for n := range uint64(differentialBatch) {
		s := newSample(t, from+n)
		d.samples = append(d.samples, s)
		answers[s.name] = s.answer
	}
	d.engine = newExactEngine(t, func(q *exactRequest) string { return answers[q.header.Get("X-Sample")] })
	return d
}

// send sends all samples at once; headers are pairs of name and value.
func (d *differential) send(url string, http2 bool, headers ...string) []<-chan result {
	d.heads.Store(0)
	var all []<-chan result
	for _, s := range d.samples {
		r, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, url+s.path, http.NoBody)
		require.NoError(d.t, err)
		r.Header = s.header.Clone()
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		s.shape.shape(r, s.body)
		client := d.clients[http2 && s.shape.http2]
		if !s.shape.http2 || !http2 {
			r.Trailer = trailersOf(r)
		}
		done := make(chan result, 1)
		all = append(all, done)
		go func() {
			resp, err := client.Do(r)
			d.heads.Add(1)
			if err != nil {
				done <- result{err: err}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			done <- result{status: resp.StatusCode, header: resp.Header, body: string(body), err: err}
		}()
	}
	return all
}

// trailersOf returns the trailers that HTTP/1.1 can send: those after chunks.
func trailersOf(r *http.Request) http.Header {
	if r.ContentLength >= 0 {
		return nil
	}
	return r.Trailer
}

// got is what the engine and the clients received of the samples.
type got struct {
	requests map[string]*exactRequest
	answers  map[string]result
}

func (d *differential) got(answers []<-chan result) got {
	g := got{requests: map[string]*exactRequest{}, answers: map[string]result{}}
	for i, s := range d.samples {
		g.answers[s.name] = <-answers[i]
	}
	requests, faults := d.engine.taken()
	require.Empty(d.t, faults)
	require.Len(d.t, requests, len(d.samples))
	for _, q := range requests {
		g.requests[q.header.Get("X-Sample")] = q
	}
	return g
}

// hopByHop are headers of one connection or of the router, which differ between paths.
var hopByHop = map[string]bool{
	"Host": true, "Connection": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true, "Accept-Encoding": true,
	"X-Forwarded-Proto": true, "X-Request-Id": true, "Holdgate-Via": true, "Date": true, "Server-Timing": true,
}

// plainHeader returns the headers that must be the same on all paths. Repeated values
// are equivalent to joined ones.
func plainHeader[H http.Header | textproto.MIMEHeader](h H) map[string]string {
	plain := map[string]string{}
	for name, values := range h {
		if !hopByHop[name] {
			plain[name] = strings.Join(values, ", ")
		}
	}
	return plain
}

// compare requires that the engine got the samples as on the direct path, and that
// their clients got its answers.
func (d *differential) compare(direct, other got, way string) {
	for _, s := range d.samples {
		what := way + ", sample " + s.name
		d.compareRequest(direct.requests[s.name], other.requests[s.name], what)
		want, have := direct.answers[s.name], other.answers[s.name]
		require.NoError(d.t, want.err, what)
		require.NoError(d.t, have.err, what)
		require.Equal(d.t, want.status, have.status, what+" "+have.body[:min(200, len(have.body))])
		require.Equal(d.t, plainHeader(want.header), plainHeader(have.header), what)
		require.True(d.t, want.body == have.body, "%s: %d bytes for %d", what, len(have.body), len(want.body)) //nolint:testifylint // Equal would print megabytes
	}
}

func (d *differential) compareRequest(want, have *exactRequest, what string) {
	require.NotNil(d.t, want, what)
	require.NotNil(d.t, have, what)
	require.Equal(d.t, want.line, have.line, what)
	require.Equal(d.t, plainHeader(want.header), plainHeader(have.header), what)
	require.True(d.t, want.body == have.body, "%s: the engine got %d bytes for %d", what, len(have.body), len(want.body)) //nolint:testifylint // Equal would print megabytes
}

// requireLateAnswers requires the right answers for requests whose clients had
// keepalives before.
func (d *differential) requireLateAnswers(direct, other got) {
	for _, s := range d.samples {
		what := "held with keepalives, sample " + s.name
		d.compareRequest(direct.requests[s.name], other.requests[s.name], what)
		have := other.answers[s.name]
		require.NoError(d.t, have.err, what)
		require.Equal(d.t, http.StatusOK, have.status, what)
		rest := have.body
		for _, form := range []string{ping, comment, " "} {
			for strings.HasPrefix(rest, form) {
				rest = rest[len(form):]
			}
		}
		if s.status < 400 {
			require.True(d.t, strings.TrimLeft(s.text, " ") == rest, "%s: %.100q for %.100q", what, rest, s.text) //nolint:testifylint // Equal would print megabytes
		} else {
			require.Contains(d.t, rest, s.name, what)
		}
	}
}

// On every path, the engine gets a request and its client gets the answer as if they
// were connected directly. HOLDGATE_DIFFERENTIAL is the number of requests; `make
// differential` sends many.
func TestEveryPathCarriesTheSame(t *testing.T) {
	batches, from := 1, uint64(1)
	if text := os.Getenv("HOLDGATE_DIFFERENTIAL"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "HOLDGATE_DIFFERENTIAL")
		batches, from = (n+differentialBatch-1)/differentialBatch, rand.Uint64()
		t.Logf("samples from %d on", from)
	}
	s := startSite(t, "--queue-depth", "1000", "--wake-keepalive", "1m")
	early := startSite(t, "--queue-depth", "1000", "--wake-keepalive", "50ms")
	waiting := strconv.Itoa(differentialBatch)
	for batch := range uint64(batches) {
		d := newDifferential(t, from+batch*differentialBatch)
		direct := d.got(d.send("http://"+d.engine.addr, false))

		held := d.send(s.url, true)
		s.metric(`hivenet_pending_demand{model="m"}`, waiting)
		a := s.register(hello("a", d.engine.addr, 8, "m"))
		d.compare(direct, d.got(held), "held")
		d.compare(direct, d.got(d.send(s.url, true)), "warm")
		a.leave()
		s.asleep("m")
		held = d.send(s.url, true, "X-Wake-Keepalive", "off")
		s.metric(`hivenet_pending_demand{model="m"}`, waiting)
		a = s.register(hello("a", d.engine.addr, 8, "m"))
		d.compare(direct, d.got(held), "held without keepalives")
		a.leave()
		s.asleep("m")

		held = d.send(early.url, true)
		early.eventually("all have a keepalive", func() bool { return d.heads.Load() == differentialBatch })
		a = early.register(hello("a", d.engine.addr, 8, "m"))
		d.requireLateAnswers(direct, d.got(held))
		a.leave()
		early.asleep("m")
	}
	s.atRest()
	early.atRest()
}
