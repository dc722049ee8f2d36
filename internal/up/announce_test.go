// SPDX-License-Identifier: Apache-2.0

package up

import (
	"bytes"
	"net"
	"net/url"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestCurlIsEasyToRead(t *testing.T) {
	t.Parallel()
	m := Model{Name: "it's", Kinds: []string{"embedding"}}
	require.Equal(t, `curl http://a:1/v1/embeddings -H 'content-type: application/json' -d '{"model":"it'\''s","input":"hello"}'`,
		m.curl(&url.URL{Scheme: "http", Host: "a:1"}))
}

func TestAddressInUseSaysWhatToDo(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	address := lis.Addr().String()
	require.EqualError(t, checkFree(t.Context(), "admin", address, "change it"),
		"admin: "+address+" cannot be used: listen tcp "+address+": bind: address already in use: end what listens there, or change it")
}

func TestAgentsWarnOfNothingWhileAllOfItStops(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &run{Log: zerolog.New(&out)}
	log := r.agentLog()
	log.Info().Msg("a")
	log.Warn().Msg("b")
	r.stopping.Store(true)
	log.Warn().Msg("c")
	log.Error().Msg("d")
	require.Equal(t, "{\"level\":\"warn\",\"message\":\"b\"}\n{\"level\":\"error\",\"message\":\"d\"}\n", out.String())
}
