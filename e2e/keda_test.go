// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// kedaClient returns the client that KEDA generates and uses.
func kedaClient(t *testing.T, addr string, c credentials.TransportCredentials) externalscaler.ExternalScalerClient {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(c))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return externalscaler.NewExternalScalerClient(conn)
}

// scaledObject returns KEDA's description of a ScaledObject; metadata are pairs.
func scaledObject(model string, metadata ...string) *externalscaler.ScaledObjectRef {
	ref := &externalscaler.ScaledObjectRef{Name: model, Namespace: "default", ScalerMetadata: map[string]string{"model": model}}
	for i := 0; i+1 < len(metadata); i += 2 {
		ref.ScalerMetadata[metadata[i]] = metadata[i+1]
	}
	return ref
}

func TestKEDALearnsOfTheDemand(t *testing.T) {
	s := startSite(t, "--keda-listen", "127.0.0.1:0", "--wake-linger", "0s")
	keda := kedaClient(t, s.app.Addresses()["keda"], insecure.NewCredentials())
	m := scaledObject("m", "window", "1s", "threshold", "2")
	active := func() bool {
		r, err := keda.IsActive(t.Context(), m)
		require.NoError(t, err)
		return r.GetResult()
	}
	value := func() int64 {
		r, err := keda.GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: m, MetricName: "holdgate-demand"})
		require.NoError(t, err)
		return r.GetMetricValues()[0].GetMetricValue()
	}
	_, err := keda.IsActive(t.Context(), scaledObject("nobody's"))
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Contains(t, err.Error(), "nobody's")
	spec, err := keda.GetMetricSpec(t.Context(), m)
	require.NoError(t, err)
	require.EqualValues(t, 2, spec.GetMetricSpecs()[0].GetTargetSize())
	specs, err := keda.StreamMetricSpec(t.Context(), m)
	require.NoError(t, err)
	streamed, err := specs.Recv()
	require.NoError(t, err)
	require.Equal(t, spec.String(), streamed.String())
	require.False(t, active())
	require.Zero(t, value())

	ctx, cancel := context.WithCancel(t.Context())
	stream, err := keda.StreamIsActive(ctx, m)
	require.NoError(t, err)
	answer := s.start(t.Context(), chatPath, chatBody("m", false))
	pushed, err := stream.Recv()
	require.NoError(t, err)
	require.True(t, pushed.GetResult())
	require.True(t, active())
	second := s.start(t.Context(), chatPath, chatBody("m", false))
	s.eventually("two wait", func() bool { return value() == 2 })
	s.register(hello("a", newEngine(t, nil).addr(), 1, "m"))
	require.Equal(t, http.StatusOK, (<-answer).status)
	require.Equal(t, http.StatusOK, (<-second).status)
	require.True(t, active(), "routed within the window")
	require.EqualValues(t, 1, value(), "the replica is needed")
	s.eventually("inactive after the window", func() bool { return !active() })
	require.Zero(t, value())

	cancel()
	for err = nil; err == nil; {
		if pushed, err = stream.Recv(); err == nil {
			require.True(t, pushed.GetResult(), "false is never pushed")
		}
	}
	require.Equal(t, codes.Canceled, status.Code(err))
	s.atRest()
}

func TestManyScaledObjectsShareTheScaler(t *testing.T) {
	const objects, wanted = 300, 7
	s := startSite(t, "--keda-listen", "127.0.0.1:0", "--site-id=here")
	var placements []string
	for i := range objects {
		placements = append(placements, fmt.Sprintf(`{"model":"m%d","kind":"chat","site":"here","scale_from_zero":true}`, i))
	}
	require.Equal(t, http.StatusOK, s.putMap(`{"placements":[`+strings.Join(placements, ",")+`]}`).status)
	keda := kedaClient(t, s.app.Addresses()["keda"], insecure.NewCredentials())
	ctx, cancel := context.WithCancel(t.Context())
	var streams []grpc.ServerStreamingClient[externalscaler.IsActiveResponse]
	for i := range objects {
		stream, err := keda.StreamIsActive(ctx, scaledObject(fmt.Sprint("m", i)))
		require.NoError(t, err)
		streams = append(streams, stream)
	}
	client, leave := context.WithCancel(t.Context())
	held := s.start(client, chatPath, chatBody(fmt.Sprint("m", wanted), false))
	pushed, err := streams[wanted].Recv()
	require.NoError(t, err)
	require.True(t, pushed.GetResult())
	leave()
	<-held
	cancel()
	for i, stream := range streams {
		_, err := stream.Recv()
		require.Equal(t, codes.Canceled, status.Code(err), "stream %d was notified of another model's need", i)
	}
}

func TestKEDAConnectsOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	selfSigned(t, cert, key)
	s := startSite(t, "--keda-listen", "127.0.0.1:0", "--keda-tls-cert-file", cert, "--keda-tls-key-file", key)
	trusted := func() credentials.TransportCredentials {
		c, err := credentials.NewClientTLSFromFile(cert, "")
		require.NoError(t, err)
		return c
	}
	ask := func(c credentials.TransportCredentials) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := kedaClient(t, s.app.Addresses()["keda"], c).IsActive(ctx, scaledObject("m"))
		return err
	}
	old := trusted()
	require.NoError(t, ask(old))
	require.Equal(t, codes.Unavailable, status.Code(ask(insecure.NewCredentials())))

	selfSigned(t, cert, key) // renew it
	require.NoError(t, s.app.Reload())
	require.NoError(t, ask(trusted()))
	require.ErrorContains(t, ask(old), "certificate")
}

// selfSigned writes a certificate for loopback and its key.
func selfSigned(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	require.NoError(t, err)
	text, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}), 0o600))
}
