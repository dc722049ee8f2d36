// SPDX-License-Identifier: Apache-2.0

package shared_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/certs/certstest"
	"github.com/holdgate/holdgate/internal/polltest"
	"github.com/holdgate/holdgate/internal/shared"
	"github.com/holdgate/holdgate/internal/shared/valkeytest"
)

func passwordFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func awaitAnswer(t *testing.T, c *shared.Client) {
	t.Helper()
	polltest.Until(t, "the server answers", func() bool {
		_, err := get(t.Context(), c, c.Key("none"))
		return valkey.IsValkeyNil(err)
	})
}

func TestAServerWithAPassword(t *testing.T) {
	server := valkeytest.StartReal(t, "--requirepass", "secret", "--user", "me", "on", ">mine", "~*", "&*", "+@all")
	awaitAnswer(t, server.RouterAt(shared.Address{URL: server.URL(), PasswordFile: passwordFile(t, "secret\n")}, nil))
	awaitAnswer(t, server.RouterAt(shared.Address{URL: server.URL(), PasswordFile: passwordFile(t, "me\nmine\n")}, nil))
}

func TestAServerWithTLS(t *testing.T) {
	ca := certstest.New(t)
	server := valkeytest.StartReal(t) // the one in memory names its own address
	url := "valkeys://" + tlsBefore(t, server.Address(), ca)
	awaitAnswer(t, server.RouterAt(shared.Address{URL: url, CAFile: ca.File}, nil))

	stranger, err := shared.New(shared.Options{
		Address: shared.Address{URL: url}, Registerer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	stranger.Run(ctx)
	require.False(t, stranger.Up(), "a certificate of an unknown authority is accepted")
}

// tlsBefore returns an address with TLS in front of another: the server that is installed for
// tests has none.
func tlsBefore(t *testing.T, address string, ca *certstest.Authority) string {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(ca.Issue())
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
				serving.Go(func() {
					_, _ = io.Copy(to, from)
					_ = to.Close()
				})
			}
		}
	})
	return l.Addr().String()
}

// Three servers of a cluster share the keys of a site: all but those that are spread are in
// one slot, and messages reach the routers wherever they are connected.
func TestACluster(t *testing.T) {
	var servers []*valkeytest.Server
	for range 3 {
		servers = append(servers, valkeytest.StartReal(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000"))
	}
	join(t, servers)
	url := servers[0].URL() + "?addr=" + servers[1].Address() + "&addr=" + servers[2].Address()
	one, two := newBoardAt(servers[0], url), newBoardAt(servers[0], url)
	one.set("x", "1")
	two.awaitSees(t, "x", "1")
	polltest.Until(t, "both routers know each other", func() bool { return len(one.client.Routers()) == 2 })
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		key := one.client.Spread("test", name)
		require.NoError(t, one.client.DoSlowly(t.Context(), "set", func(b valkey.Builder) valkey.Completed {
			return b.Set().Key(key).Value(name).Build()
		}).Error())
		value, err := get(t.Context(), two.client, key)
		require.NoError(t, err)
		require.Equal(t, name, value)
	}
}

// join makes the servers a cluster.
func join(t *testing.T, servers []*valkeytest.Server) {
	t.Helper()
	slots := [][2]int64{{0, 5460}, {5461, 10922}, {10923, 16383}}
	var nodes []valkey.Client
	for i, s := range servers {
		node, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Address()}, ForceSingleClient: true, DisableCache: true})
		require.NoError(t, err)
		t.Cleanup(node.Close)
		nodes = append(nodes, node)
		require.NoError(t, node.Do(t.Context(), node.B().ClusterAddslotsrange().StartSlotEndSlot().StartSlotEndSlot(slots[i][0], slots[i][1]).Build()).Error())
	}
	for _, s := range servers[1:] {
		host, port, _ := strings.Cut(s.Address(), ":")
		require.NoError(t, nodes[0].Do(t.Context(), nodes[0].B().Arbitrary("CLUSTER", "MEET", host, port).Build()).Error())
	}
	for _, node := range nodes {
		polltest.Until(t, "the cluster is complete", func() bool {
			info, err := node.Do(t.Context(), node.B().ClusterInfo().Build()).ToString()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
}
