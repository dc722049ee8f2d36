//go:build e2e

package envoy

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestX(b *testing.T) {
	good := goodEngine(b, echo)
	for _, to := range []string{"0s", "1s"} {
		l := &lab{dir: lanesDir(b), decide: func(a asked) answer { time.Sleep(3 * time.Second); return answer{first: good} }, asks: make(chan asked, 400096)}
		l.logs = map[string]chan logged{LogEdge: make(chan logged, 400096), LogAttempt: make(chan logged, 4096)}
		l.serve(b)
		text := string(rendered(b, Config{EdgeListen: "127.0.0.1:0", LanesDir: l.dir}))
		text = strings.ReplaceAll(text, "timeout: 0s", "timeout: "+to)
		text = strings.ReplaceAll(text, "cluster: destinations\n                            timeout: 1s", "cluster: destinations\n                            timeout: 0s")
		fmt.Println(strings.Count(text, "timeout: 1s"))
		p, err := binary(b).Start(b.Context(), Options{Bootstrap: []byte(text), Dir: l.dir, Concurrency: 1, Log: os.Stderr, LogLevel: "error"})
		require.NoError(b, err)
		l.envoy = p
		resp, err := http.Post(l.url("/x"), "text/plain", strings.NewReader("abc"))
		require.NoError(b, err)
		x, _ := io.ReadAll(resp.Body)
		fmt.Println(to, resp.Status, string(x))
		resp.Body.Close()
		p.Stop(time.Second)
	}
}
