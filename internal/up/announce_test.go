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
	require.Equal(t, `curl http://a:1/v1/embeddings -H 'content-type: application/json' -d '{"input":"hello","model":"it'\''s"}'`,
		m.curl(&url.URL{Scheme: "http", Host: "a:1"}))
}

func TestAddressInUseSaysWhatToDo(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	require.ErrorContains(t, free(t.Context(), lis.Addr().String()),
		"address already in use: end what listens there, or change listen in the file, or give --listen")
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
