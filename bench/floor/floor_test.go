// SPDX-License-Identifier: Apache-2.0

package floor

import (
	"context"
	"path/filepath"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// open serves the floor on a new socket and opens one stream to it.
func open(t *testing.T) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	socket := filepath.Join(t.TempDir(), "floor.sock")
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, socket, "127.0.0.1:8000") }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		cancel()
		require.NoError(t, <-ended)
	})
	// WaitForReady covers the time until the socket exists.
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context(), grpc.WaitForReady(true))
	require.NoError(t, err)
	return stream
}

func TestHeadersAreAnsweredWithTheDestinationAndTheLength(t *testing.T) {
	t.Parallel()
	stream := open(t)
	require.NoError(t, stream.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":path", RawValue: []byte("/v1/chat/completions")},
				{Key: "content-length", RawValue: []byte("1024")},
			}},
		}},
	}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, answer.GetRequestHeaders())
	got := answer.GetDynamicMetadata().AsMap()
	require.Equal(t, map[string]any{"holdgate": map[string]any{
		"first": "127.0.0.1:8000", "mode": "native", "content_length": "1024",
	}}, got)
}

func TestEachChunkComesBackAsItIs(t *testing.T) {
	t.Parallel()
	stream := open(t)
	for _, chunk := range []struct {
		body string
		last bool
	}{{"first", false}, {"last", true}} {
		require.NoError(t, stream.Send(&extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestBody{
				RequestBody: &extprocv3.HttpBody{Body: []byte(chunk.body), EndOfStream: chunk.last},
			},
		}))
		answer, err := stream.Recv()
		require.NoError(t, err)
		back := answer.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		require.Equal(t, chunk.body, string(back.GetBody()))
		require.Equal(t, chunk.last, back.GetEndOfStream())
	}
}
