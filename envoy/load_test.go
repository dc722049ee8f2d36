// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// fakeAdmin is an admin interface with fixed answers by path.
type fakeAdmin map[string]string

func (a fakeAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, ok := a[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = io.WriteString(w, text)
}

const (
	someClusters = `{"cluster_statuses":[
		{"name":"first","host_statuses":[
			{"address":{"socket_address":{"address":"127.0.0.1","port_value":8000}},"stats":[{"name":"cx_active","value":"9"},{"name":"rq_active","value":"2","type":"GAUGE"}]},
			{"address":{"socket_address":{"address":"127.0.0.1","port_value":8000}},"stats":[{"name":"rq_active","value":"1"}]},
			{"address":{"socket_address":{"address":"::1","port_value":8000}},"stats":[{"name":"rq_active"}]}]},
		{"name":"relay","host_statuses":[
			{"address":{"socket_address":{"address":"::1","port_value":8000}},"stats":[{"name":"rq_active","value":"4"}]}]},
		{"name":"pool_q","host_statuses":[{"address":{"pipe":{"path":"/run/pool-q.sock"}},"stats":[{"name":"rq_active","value":"3"}]}]},
		{"name":"destinations"},
		{"name":"holdgate_log","host_statuses":[{"address":{"pipe":{"path":"/x"}},"stats":[{"name":"rq_active","value":"2"}]}]}]}`
	someStats = `{"stats":[{"name":"http.edge.downstream_rq_active","value":5}]}`
)

func TestALoadIsTheSumOfTheEnvoys(t *testing.T) {
	t.Parallel()
	answers := fakeAdmin{"/clusters": someClusters, "/stats": someStats}
	tcp := httptest.NewServer(answers)
	defer tcp.Close()
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	unix := &http.Server{Handler: answers}
	go func() { _ = unix.Serve(l) }()
	defer unix.Close()
	var load Load
	require.NoError(t, NewAdmin(tcp.URL+"/").AddTo(t.Context(), &load))
	require.Equal(t, Load{Edge: 5, Logs: 2, To: map[string]int{"127.0.0.1:8000": 3, "[::1]:8000": 4, protocol.PoolAddress("q").String(): 3}}, load)
	require.NoError(t, NewAdmin("unix://"+path).AddTo(t.Context(), &load))
	require.Equal(t, Load{Edge: 10, Logs: 4, To: map[string]int{"127.0.0.1:8000": 6, "[::1]:8000": 8, protocol.PoolAddress("q").String(): 6}}, load)
}

func TestALoadThatIsNotWholeIsAnError(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]fakeAdmin{
		"no clusters":      {"/stats": someStats},
		"no stats":         {"/clusters": someClusters},
		"no edge":          {"/clusters": someClusters, "/stats": `{"stats":[]}`},
		"no JSON":          {"/clusters": "first::127.0.0.1", "/stats": someStats},
		"half":             {"/clusters": strings.TrimSuffix(someClusters, "}"), "/stats": someStats},
		"no sense at all":  {"/clusters": `{"cluster_statuses":[{"host_statuses":[{"stats":[{"name":"rq_active","value":"x"}]}]}]}`, "/stats": someStats},
		"nothing answered": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(answers)
			defer server.Close()
			require.Error(t, NewAdmin(server.URL).AddTo(t.Context(), &Load{}))
		})
	}
}
