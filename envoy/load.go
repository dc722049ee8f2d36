// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// loadLimit limits the size of an answer with all hosts. Each worker has its own host
// entries.
const loadLimit = 64 << 20

// Load is the number of requests in progress in all Envoys at one moment.
type Load struct {
	// Edge counts the requests at the edge, until their clients have received the whole
	// answer.
	Edge int
	// Logs counts the open streams of the access log.
	Logs int
	// To counts the requests that the engines still work on, by ip:port.
	To map[string]int
}

// Admin is a client of an Envoy's admin interface.
type Admin struct {
	client *http.Client
	base   string
}

// NewAdmin returns a client for http://host:port or unix:///path.
func NewAdmin(at string) *Admin {
	transport := &http.Transport{DisableKeepAlives: true}
	if path, ok := strings.CutPrefix(at, "unix://"); ok {
		at = "http://envoy"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	client := &http.Client{
		Transport: transport,
		// An Envoy redirects nobody.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Admin{client: client, base: strings.TrimSuffix(at, "/")}
}

// AddTo adds the load of this Envoy to l.
func (a *Admin) AddTo(ctx context.Context, l *Load) error {
	var clusters clusterList
	if err := a.get(ctx, "/clusters?format=json", &clusters); err != nil {
		return err
	}
	edge, err := a.active(ctx)
	if err != nil {
		return err
	}
	l.Edge += edge
	clusters.addTo(l)
	return nil
}

// active returns the number of requests at the edge.
func (a *Admin) active(ctx context.Context) (int, error) {
	var answer struct {
		Stats []struct {
			Value int `json:"value"`
		} `json:"stats"`
	}
	if err := a.get(ctx, "/stats?format=json&filter=^http.edge.downstream_rq_active$", &answer); err != nil {
		return 0, err
	}
	if len(answer.Stats) != 1 {
		return 0, fmt.Errorf("asking Envoy for its requests: it has no listener whose stat_prefix is %s", edgeListener)
	}
	return answer.Stats[0].Value, nil
}

func (a *Admin) get(ctx context.Context, path string, to any) error {
	text, err := a.answer(ctx, path, loadLimit)
	if err != nil {
		return fmt.Errorf("asking Envoy for its requests: %w", err)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("reading Envoy's answer: %w", err)
	}
	return nil
}

// answer returns an answer of at most limit bytes.
func (a *Admin) answer(ctx context.Context, path string, limit int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("it answered with more than %d bytes", limit)
	}
	return text, nil
}

// clusterList is the part of /clusters that is used.
type clusterList struct {
	Clusters []struct {
		Name  string `json:"name"`
		Hosts []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    uint16 `json:"port_value"`
				} `json:"socket_address"`
				Pipe struct {
					Path string `json:"path"`
				} `json:"pipe"`
			} `json:"address"`
			Stats []struct {
				Name  string `json:"name"`
				Value int    `json:"value,string"`
			} `json:"stats"`
		} `json:"host_statuses"`
	} `json:"cluster_statuses"`
}

// addTo counts the requests to an address in all clusters: counting too many only
// delays a correction. Each worker has its own host entry for an original destination.
func (c *clusterList) addTo(l *Load) {
	if l.To == nil {
		l.To = map[string]int{}
	}
	for _, cluster := range c.Clusters {
		for _, host := range cluster.Hosts {
			n := 0
			for _, s := range host.Stats {
				if s.Name == "rq_active" {
					n = s.Value
				}
			}
			if cluster.Name == logCluster {
				l.Logs += n
			}
			if ip, err := netip.ParseAddr(host.Address.Socket.Address); err == nil {
				l.To[netip.AddrPortFrom(ip, host.Address.Socket.Port).String()] += n
			}
			if pool := protocol.PoolOf(host.Address.Pipe.Path); pool != "" {
				l.To[protocol.PoolAddress(pool).String()] += n
			}
		}
	}
}
