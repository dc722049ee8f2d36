// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/internal/certs/certstest"
)

// What comes to the port of ext_proc is trusted, so its client must be one of our Envoys.
func TestOnlyEnvoysWithACertificateReachExtProc(t *testing.T) {
	t.Parallel()
	envoys := certstest.New(t)
	router := certstest.New(t)
	cert, key := router.Issue()
	for name, c := range map[string]struct {
		client *certstest.Authority
		code   codes.Code
	}{
		"ours":           {envoys, codes.OK},
		"somebody else":  {certstest.New(t), codes.Unavailable},
		"no certificate": {nil, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSecure(t, "--extproc-listen=127.0.0.1:0", "--extproc-tls-cert-file="+cert, "--extproc-tls-key-file="+key, "--extproc-client-ca-file="+envoys.File)
			s.trusted, s.client = router, c.client
			stream, err := extprocv3.NewExternalProcessorClient(s.dial(s.listeners.envoy.Addr().String())).Process(t.Context())
			if err == nil {
				_ = stream.Send(getModels())
				_, err = stream.Recv()
			}
			require.Equal(t, c.code, status.Code(err), err)
		})
	}
}

// getModels begins a GET of /v1/models.
func getModels() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		EndOfStream: true,
		Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":method", RawValue: []byte("GET")}, {Key: ":path", RawValue: []byte("/v1/models")},
		}},
	}}}
}

// A router that shuts down has its Envoys close connections, and the next one ends that.
func TestEnvoysCloseConnectionsDuringAShutdown(t *testing.T) {
	t.Parallel()
	posts := make(chan string, 10)
	admin := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts <- r.URL.Path
		}
	}))
	t.Cleanup(admin.Close)
	a := newApp(t, "--extproc-listen=127.0.0.1:0", "--agents-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--envoy-admin="+admin.URL)
	require.NoError(t, a.Start(t.Context()))
	require.Equal(t, "/healthcheck/ok", <-posts)
	require.NoError(t, a.Stop(t.Context()))
	require.Equal(t, "/healthcheck/fail", <-posts)
	require.Empty(t, posts)
}
