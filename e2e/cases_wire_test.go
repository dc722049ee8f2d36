// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slack is how much later than expected something may happen: the machine is shared.
const slack = 5 * time.Second

// wire is an answer as received over a separate connection.
type wire struct {
	status string // the first line
	head   map[string]string
	headAt time.Duration // time since the request was sent
	body   string
	pieces []piece
	whole  bool // the body is complete
	endAt  time.Duration
}

// piece records when the body had reached a number of bytes.
type piece struct {
	n  int
	at time.Duration
}

// at returns when the first n bytes of the body had arrived.
func (w *wire) at(n int) time.Duration {
	for _, p := range w.pieces {
		if p.n >= n {
			return p.at
		}
	}
	return -1
}

// requireKeepalives removes the keepalives from the beginning of the body, and returns
// their number and the rest. It requires that each came in time: the first after an
// interval, and so on.
func (w *wire) requireKeepalives(t *testing.T, form string, every time.Duration) (n int, rest string) {
	t.Helper()
	rest = w.body
	for strings.HasPrefix(rest, form) {
		n++
		rest = rest[len(form):]
		at := w.at(n * len(form))
		require.GreaterOrEqual(t, at, time.Duration(n)*every, "keepalive %d is early", n)
		require.Less(t, at, time.Duration(n)*every+slack, "keepalive %d is late", n)
	}
	return n, rest
}

// requireCommittedHead requires the head of an answer that a keepalive began.
func (w *wire) requireCommittedHead(t *testing.T, stream bool, every time.Duration) {
	t.Helper()
	require.Equal(t, "HTTP/1.1 200 OK", w.status)
	require.GreaterOrEqual(t, w.headAt, every, "nothing comes before an interval has passed")
	require.Less(t, w.headAt, every+slack)
	contentType := "application/json"
	if stream {
		contentType = "text/event-stream; charset=utf-8"
	}
	require.Len(t, w.head["x-request-id"], 36)
	delete(w.head, "x-request-id")
	delete(w.head, "date")
	require.Equal(t, map[string]string{
		"content-type": contentType, "cache-control": "no-cache", "x-accel-buffering": "no",
		"transfer-encoding": "chunked", "connection": "close",
	}, w.head)
}

// send sends a POST over a separate connection and reads the answer.
func (s *site) send(path, body string) <-chan *wire {
	s.t.Helper()
	begin := time.Now()
	conn := s.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
		path, len(body), body))
	done := make(chan *wire, 1)
	go func() { done <- readWire(conn, begin) }()
	return done
}

func readWire(conn net.Conn, begin time.Time) *wire {
	w := &wire{head: map[string]string{}}
	defer func() { w.endAt = time.Since(begin) }()
	r := bufio.NewReader(conn)
	line := func() (string, bool) {
		text, err := r.ReadString('\n')
		return strings.TrimSuffix(text, "\r\n"), err == nil
	}
	w.status, _ = line()
	for {
		text, ok := line()
		if !ok {
			return w
		}
		if text == "" {
			break
		}
		name, value, _ := strings.Cut(text, ": ")
		w.head[strings.ToLower(name)] = value
	}
	w.headAt = time.Since(begin)
	take := func(n int) bool {
		buf := make([]byte, n)
		got, err := io.ReadFull(r, buf)
		w.body += string(buf[:got])
		w.pieces = append(w.pieces, piece{n: len(w.body), at: time.Since(begin)})
		return err == nil
	}
	if w.head["transfer-encoding"] != "chunked" {
		n, err := strconv.Atoi(w.head["content-length"])
		w.whole = err == nil && take(n)
		return w
	}
	for {
		text, _ := line()
		n, err := strconv.ParseUint(text, 16, 31)
		if err != nil {
			return w
		}
		if n > 0 && !take(int(n)) {
			return w
		}
		if text, ok := line(); !ok || text != "" {
			return w
		}
		if n == 0 {
			w.whole = true
			return w
		}
	}
}

// shape is an endpoint, streaming or not, with the answers that its clients must get.
type shape struct {
	path, body string
	stream     bool
	form       string                            // of a keepalive
	event      func(code, message string) string // the last event of a stream that fails
	error      func(code, message string) string // the body of an error that is no event
}

const (
	comment = ": keep-alive\n"
	ping    = comment + "event: ping\ndata: {\"type\": \"ping\"}\n\n"
)

// object returns the inside of an error object, without its braces.
func object(code, message, more string) string {
	return fmt.Sprintf(`"code":%q,"message":%q,"source":%s`, code, message, more)
}

// waking follows "source": in an error that tells when to retry.
const waking = `"router","retry_after":30`

func openAI(more string) func(code, message string) string {
	return func(code, message string) string { return `{"error":{` + object(code, message, more) + `}}` }
}

func anthropic(kind, more string) func(code, message string) string {
	return func(code, message string) string {
		return `{"type":"error","error":{"type":"` + kind + `",` + object(code, message, more) + `}}`
	}
}

// shapes returns all shapes, for a model and for errors of a source.
func shapes(model, anthropicType, source string) map[string]shape {
	input := fmt.Sprintf(`{"model":%q,"input":"hi"}`, model)
	data := func(code, message string) string { return "data: " + openAI(source)(code, message) + "\n\n" }
	ownEvent := func(code, message string) string {
		return "event: error\ndata: " + anthropic(anthropicType, source)(code, code+": "+message) + "\n\n"
	}
	responsesEvent := func(code, message string) string {
		return fmt.Sprintf("event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,\"code\":%q,\"message\":%q,\"param\":null,\"error\":{%s}}\n\n"+
			"event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"object\":\"response\",\"status\":\"failed\",\"error\":{\"code\":%q,\"message\":%q}}}\n\n",
			code, message, object(code, message, source), code, message)
	}
	return map[string]shape{
		"chat, streaming":        {chatPath, chatBody(model, true), true, comment, data, openAI(source)},
		"chat":                   {chatPath, chatBody(model, false), false, " ", nil, openAI(source)},
		"completions, streaming": {"/v1/completions", fmt.Sprintf(`{"model":%q,"stream":true,"prompt":"hi"}`, model), true, comment, data, openAI(source)},
		"completions":            {"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hi"}`, model), false, " ", nil, openAI(source)},
		"responses, streaming":   {"/v1/responses", fmt.Sprintf(`{"model":%q,"stream":true,"input":"hi"}`, model), true, comment, responsesEvent, openAI(source)},
		"responses":              {"/v1/responses", input, false, " ", nil, openAI(source)},
		"messages, streaming":    {"/v1/messages", chatBody(model, true), true, ping, ownEvent, anthropic(anthropicType, source)},
		"messages":               {"/v1/messages", chatBody(model, false), false, " ", nil, anthropic(anthropicType, source)},
		"embeddings":             {"/v1/embeddings", input, false, " ", nil, openAI(source)},
		"rerank":                 {"/v1/rerank", fmt.Sprintf(`{"model":%q,"query":"hi","documents":["a"]}`, model), false, " ", nil, openAI(source)},
	}
}
