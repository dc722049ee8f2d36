// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadAnswerReadsToTheEndOfTheBody(t *testing.T) {
	t.Parallel()
	const next = "HTTP/1.1 204 next"
	for name, c := range map[string]struct {
		text   string
		status int
		body   string
	}{
		"length":           {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello"},
		"no body":          {"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", 503, ""},
		"chunked":          {"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n \r\n4\r\nbody\r\n0\r\n\r\n", 200, " body"},
		"other headers":    {"HTTP/1.1 200 OK\r\nx: y: z\r\ncontent-length:2\r\nserver: s\r\n\r\nok", 200, "ok"},
		"no reason phrase": {"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", 200, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := bufio.NewReader(strings.NewReader(c.text + next))
			status, body, err := readAnswer(r, nil)
			require.NoError(t, err)
			require.Equal(t, c.status, status)
			require.Equal(t, c.body, string(body))
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, next, string(rest), "what follows belongs to the next answer")
		})
	}
}

func TestReadAnswerRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"other protocol":  "HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
		"bad status":      "HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n",
		"bad length":      "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
		"no end known":    "HTTP/1.1 200 OK\r\n\r\n",
		"no colon":        "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
		"empty line only": "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := readAnswer(bufio.NewReader(strings.NewReader(text)), nil)
			require.ErrorIs(t, err, errBadAnswer)
		})
	}
}

func TestReadAnswerSaysWhenTheAnswerIsCut(t *testing.T) {
	t.Parallel()
	whole := "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
	for cut := range len(whole) {
		_, _, err := readAnswer(bufio.NewReader(strings.NewReader(whole[:cut])), nil)
		require.Error(t, err, "cut at %d", cut)
	}
}
