// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// extraHeaders returns n headers, and one of size bytes unless that is 0.
func extraHeaders(n, size int) []string {
	var headers []string
	for i := range n {
		headers = append(headers, fmt.Sprintf("X-Extra-%d", i), "1")
	}
	if size > 0 {
		headers = append(headers, "X-Large", strings.Repeat("x", size))
	}
	return headers
}

// Headers up to the limits reach the engine on every path, and no client with more of
// them takes a replica out of routing.
func TestHeadersAtTheLimitsBlameNoReplica(t *testing.T) {
	s := startSite(t)
	most := map[string][]string{"many": extraHeaders(85, 0), "large": extraHeaders(0, 62<<10)}
	over := map[string][]string{"many": extraHeaders(94, 0), "large": extraHeaders(0, 65_100)}
	refused := func() {
		for name, headers := range over {
			r := s.post(chatPath, chatBody("m", false), headers...)
			require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, r.status, "%s %s", name, r.body)
			require.Contains(t, r.body, `"code":"request_too_large"`, name)
			require.Empty(t, r.header.Get("Retry-After"), name)
		}
	}
	refused() // they would otherwise be held
	held := map[string]<-chan result{}
	for name, headers := range most {
		held[name] = s.start(t.Context(), chatPath, chatBody("m", false), headers...)
	}
	s.metric(`hivenet_pending_demand{model="m"}`, "2")
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m"))
	for name, answer := range held {
		r := <-answer
		require.Equal(t, http.StatusOK, r.status, "%s %s", name, r.body)
	}
	refused() // they would otherwise be served
	for name, headers := range most {
		r := s.post(chatPath, chatBody("m", false), headers...)
		require.Equal(t, http.StatusOK, r.status, "%s %s", name, r.body)
	}
	require.NotContains(t, s.log.String(), "agent refused a request")
	s.atRest()
}

// A path with bytes that HTTP/1.1 does not allow can arrive over HTTP/2. The lanes
// refuse it, and no replica is treated as failed.
func TestAPathThatTheLanesDoNotTakeBlamesNoReplica(t *testing.T) {
	s := startSite(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	require.NoError(t, framer.WriteSettings())
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, kv := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", "h"}, {":path", chatPath + "?q=\xff\xfe"}, {"content-type", "application/json"},
	} {
		require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]}))
	}
	require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}))
	require.NoError(t, framer.WriteData(1, true, []byte(chatBody("m", false))))
	s.metric(`hivenet_pending_demand{model="m"}`, "1")
	e := newEngine(t, nil)
	s.register(hello("a", e.addr(), 4, "m"))
	for {
		frame, err := framer.ReadFrame()
		require.NoError(t, err)
		if head, ok := frame.(*http2.MetaHeadersFrame); ok {
			require.Equal(t, "400", head.PseudoValue("status"))
			break
		}
	}
	require.NotContains(t, s.log.String(), "agent refused a request")
	require.Zero(t, e.count())
	s.atRest()
}

// An answer that Envoy cannot read would be the same the second time.
func TestAnAnswerThatIsNoHTTPIsAskedForOnce(t *testing.T) {
	for name, answer := range map[string]string{
		"101 headers":    "HTTP/1.1 200 OK\r\n" + strings.Repeat("x: 1\r\n", 101) + "content-length: 0\r\n\r\n",
		"two framings":   "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
		"a control byte": "HTTP/1.1 200 OK\r\nx: a\x01b\r\ncontent-length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := startSite(t)
			e := newExactEngine(t, func(*exactRequest) string { return answer })
			ask := s.start(t.Context(), chatPath, chatBody("m", false))
			s.metric(`hivenet_pending_demand{model="m"}`, "1")
			s.register(hello("a", e.addr, 4, "m"))
			for _, r := range []result{<-ask, s.post(chatPath, chatBody("m", false))} { // held, then warm
				require.Equal(t, http.StatusBadGateway, r.status, r.body)
				require.Contains(t, r.body, "sent an answer that is not valid HTTP")
			}
			requests, _ := e.taken()
			require.Len(t, requests, 2)
			require.NotContains(t, s.log.String(), "agent refused a request")
			s.atRest()
		})
	}
}
