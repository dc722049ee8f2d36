// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEventsAreReadOneByOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []string
		err  string
	}{
		"two, of which the last has the id": {": events\n\nevent: held\ndata: {\"a\":1}\n\nid: 7-2\nevent: held\ndata: {\"a\":2}\n\n", []string{` {"a":1}`, `7-2 {"a":2}`}, ""},
		"a comment":                         {": ping\n\n", nil, ""},
		"cut in the middle of an event":     {"id: 7-1\nevent: he", nil, ""},
		"a line without an end":             {"data: " + strings.Repeat("x", maxEvents+1), nil, "token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			err := readEvents(strings.NewReader(c.text), func(id string, data []byte) error {
				got = append(got, id+" "+string(data))
				return nil
			})
			require.Equal(t, c.want, got)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestEventsAreAskedForFromTheLastOne(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"code":"unauthorized","message":"no token"}}`))
			return
		}
		_, _ = w.Write([]byte("data: " + r.Header.Get("Last-Event-ID") + "\n\n"))
	}))
	stop := errors.New("enough")
	c, err := New(s.URL, "t")
	require.NoError(t, err)
	err = c.Events(t.Context(), "7-1", func(_ string, data []byte) error {
		require.Equal(t, "7-1", string(data))
		return stop
	})
	require.ErrorIs(t, err, stop)
	other, err := New(s.URL, "")
	require.NoError(t, err)
	require.ErrorContains(t, other.Events(t.Context(), "", nil), "no token")
	s.Close()
	require.ErrorContains(t, c.Events(t.Context(), "", nil), "is holdgate serve running there?")
}
