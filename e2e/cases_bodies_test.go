// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Many concurrent long prompts are read and forwarded completely.
func TestManyLongPromptsPassAtOnce(t *testing.T) {
	const prompts = 150
	s := startSite(t)
	s.http.Transport.(*http.Transport).MaxIdleConnsPerHost = prompts
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), prompts, "m"))
	body := bigBody("m", 220<<10)
	var answers []<-chan result
	for range prompts {
		answers = append(answers, s.start(t.Context(), chatPath, body))
	}
	for _, a := range answers {
		r := <-a
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	require.Equal(t, prompts, e.count())
	for _, sent := range e.bodies {
		require.Equal(t, body, sent)
	}
	s.atRest()
}

// Bodies of every size up to the limit are held and served, including those above the
// default limits of gRPC (4 MiB) and of Envoy's buffers (32 KiB, 1 MiB).
func TestBodiesOfEverySizeAreHeldAndServed(t *testing.T) {
	s := startSite(t)
	e := newEngine(t, nil)
	sizes := []int{32_700, 32_769, 1 << 20, 5 << 20, 10<<20 - 200}
	answers := map[int]<-chan result{}
	for _, n := range sizes {
		answers[n] = s.start(t.Context(), chatPath, bigBody("m", n))
	}
	s.metric(`hivenet_pending_demand{model="m"}`, fmt.Sprint(len(sizes)))
	s.register(hello("a", e.addr(), 1, "m"))
	for n, a := range answers {
		r := <-a
		require.NoError(t, r.err, n)
		require.Equal(t, http.StatusOK, r.status, "%d %s", n, r.body)
	}
	for _, n := range sizes {
		body := bigBody("m", n)
		require.Contains(t, e.bodies, body, "held, %d bytes", n)
		require.Equal(t, http.StatusOK, s.post(chatPath, body).status, n)
		got, sent := e.last()
		require.Equal(t, int64(len(body)), got.ContentLength)
		require.Equal(t, body, sent)
	}
	s.atRest()
}

// The bodies of held requests have a common limit, and are freed with their requests.
func TestHeldBytesAreBounded(t *testing.T) {
	s := startSite(t, "--wake-hold-max-bytes", "1MiB", "--max-request-bytes", "1MiB")
	body := bigBody("m", 400<<10)
	held := []<-chan result{s.start(t.Context(), chatPath, body), s.start(t.Context(), chatPath, body)}
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	r := s.post(chatPath, body)
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Contains(t, r.body, "too many requests are already waiting for it; retry in 30 seconds")
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	small := s.start(t.Context(), chatPath, chatBody("m", false))
	s.metric(`hivenet_pending_demand{model="m"}`, "3") // there is room for it
	a := s.register(hello("a", newEngine(t, nil).addr(), 4, "m"))
	for _, answer := range append(held, small) {
		require.Equal(t, http.StatusOK, (<-answer).status)
	}
	a.leave()
	s.asleep("m")
	again := []<-chan result{s.start(t.Context(), chatPath, body), s.start(t.Context(), chatPath, body)}
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	s.register(hello("b", newEngine(t, nil).addr(), 4, "m"))
	for _, answer := range again {
		require.Equal(t, http.StatusOK, (<-answer).status)
	}
	s.atRest()
}

// A multipart upload goes to no endpoint of the router: it is refused at once and never
// held. A multipart body on an endpoint is not JSON.
func TestUploadsOfPartsAreNeverHeld(t *testing.T) {
	s := startSite(t)
	const parts = "--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nxx\r\n--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n"
	for path, want := range map[string]int{
		"/v1/audio/transcriptions": http.StatusNotFound, "/v1/images/edits": http.StatusNotFound, chatPath: http.StatusBadRequest,
	} {
		r := s.request(t.Context(), http.MethodPost, path, parts)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		got := s.do(r)
		require.Equal(t, want, got.status, path)
		require.True(t, strings.HasPrefix(got.body, `{"error":{"code":`), got.body)
	}
	s.metric(`hivenet_pending_demand{model="m"}`, "0")
	s.metric(`hivenet_wake_wanted{model="m"}`, "0")
	s.atRest()
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// The codings that coding assistants send are read while the model sleeps, and the
// bodies reach the engine unchanged.
func TestCompressedBodiesAreHeld(t *testing.T) {
	s := startSite(t, "--wake-keepalive", "50ms")
	e := newEngine(t, nil)
	body := gzipped(t, bigBody("m", 100<<10))
	var answers []<-chan result
	for _, coding := range []string{"gzip", "x-gzip", "GZIP"} {
		answers = append(answers, s.start(t.Context(), chatPath, body, "Content-Encoding", coding))
	}
	s.metric(`hivenet_pending_demand{model="m"}`, "3")
	s.register(hello("a", e.addr(), 4, "m"))
	for _, a := range answers {
		require.Equal(t, http.StatusOK, (<-a).status)
	}
	for i, sent := range e.bodies {
		require.Equal(t, body, sent)
		require.Contains(t, strings.ToLower(e.requests[i].Header.Get("Content-Encoding")), "gzip")
	}
	s.atRest()
}
