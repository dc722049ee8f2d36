// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
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

// The gauge of an Envoy follows whether it is ready.
func TestTheGaugeOfAnEnvoySaysWhetherItAnswers(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(admin.Close)
	a := newApp(t, "--envoy-admin="+admin.URL)
	up := func() float64 {
		a.envoys.look(t.Context())
		return testutil.ToFloat64(a.envoys.up.WithLabelValues(admin.URL))
	}
	require.Zero(t, up())
	ready.Store(true)
	require.InDelta(t, 1, up(), 0)
	admin.Close()
	require.Zero(t, up())
	require.NoError(t, a.audit.Close())
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
