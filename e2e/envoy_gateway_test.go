// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/certs/certstest"
)

// routerName is the name of Holdgate's Service on the pages.
const routerName = "holdgate.models.svc.cluster.local"

// renderedBy runs the n-th holdgate envoy render of a page and returns what it prints.
func renderedBy(t *testing.T, page string, n int) string {
	t.Helper()
	text, err := os.ReadFile("../docs/gateways/" + page)
	require.NoError(t, err)
	const begin = "```sh\nholdgate envoy render "
	parts := strings.Split(string(text), begin)
	require.Greater(t, len(parts), n, "%s has fewer commands", page)
	line, _, found := strings.Cut(parts[n], "| kubectl apply -f -\n```")
	require.True(t, found)
	args := strings.Fields(strings.ReplaceAll(line, "\\\n", " "))
	out, err := exec.CommandContext(t.Context(), filepath.Join(root(t), "bin", "holdgate"), append([]string{"envoy", "render"}, args...)...).Output()
	require.NoError(t, err)
	return string(out)
}

// requireRendered requires that a command of a page prints a file of the golden manifests, which
// are validated, and for Envoy Gateway translated.
func requireRendered(t *testing.T, page string, n int, name string) {
	t.Helper()
	want, err := os.ReadFile("../internal/manifest/testdata/" + name + ".yaml")
	require.NoError(t, err)
	require.Equal(t, string(want), renderedBy(t, page, n))
}

// behind is a gateway of a page, its Holdgate, and an engine that is not there at first.
type behind struct {
	*site
	dir, listen, engine string
	extProc             string // where Holdgate listens for Envoy
	serve               *process
	called              chan struct{} // one for each call that wakes the engine
	// begun has one for each request with X-Wait, and finish lets them end.
	begun, finish chan struct{}
	end           sync.Once // closes finish
	awake         func()    // is called when the engine is there; nil: nothing is
}

// within waits for something to come from a channel.
func (b *behind) within(what string, from chan struct{}) {
	b.t.Helper()
	b.eventually(what, func() bool {
		select {
		case <-from:
			return true
		default:
			return false
		}
	})
}

// letEnd lets requests with X-Wait end.
func (b *behind) letEnd() { b.end.Do(func() { close(b.finish) }) }

// engineBackend is a serve.yaml for an engine that Holdgate knows by its address.
const engineBackend = "backends:\n- {name: models, url: \"http://ENGINE\", health_path: /health, models: [m], wake: {url: \"SCALER/wake\"}}\n"

// serveAs starts the holdgate serve that a page begins with the given text, with the
// serve.yaml of plain-envoy.md or another one. moved are replaced in its command, such as
// files and addresses.
func serveAs(t *testing.T, page, begins, serveYAML string, moved ...string) *behind {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &behind{
		site: &site{t: t, log: &buffer{}, http: newHTTPClient(t)}, dir: dir, listen: closedPort(t), engine: closedPort(t),
		called: make(chan struct{}, 100), begun: make(chan struct{}, 1), finish: make(chan struct{}),
	}
	scaler := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { b.called <- struct{}{} }))
	t.Cleanup(scaler.Close)
	if serveYAML == "" {
		serveYAML = block(t, "gateways/plain-envoy.md", "yaml", "backends:")
	}
	config := filepath.Join(dir, "serve.yaml")
	here := strings.NewReplacer("127.0.0.1:8080", b.listen, "https://scaler.example.com", scaler.URL, "SCALER", scaler.URL, "ENGINE", b.engine)
	require.NoError(t, os.WriteFile(config, []byte(here.Replace(serveYAML)), 0o600))
	moved = append(moved, "127.0.0.1:8080", b.listen, "https://gateway.example", "http://"+b.listen, "/etc/holdgate/serve.yaml", config)
	line := strings.Fields(strings.NewReplacer(moved...).Replace(block(t, "gateways/"+page, "", begins)))
	line = append(line[1:], "--agents-listen", "unix://"+dir+"/agents.sock", "--admin-listen", "127.0.0.1:0", "--wake-keepalive", "200ms", "--log-level", "debug")
	if !strings.Contains(strings.Join(line, " "), "--extproc-listen") {
		line = append(line, "--extproc-listen", "unix://"+dir+"/extproc.sock")
	}
	b.serve = start(t, line...)
	b.admin = b.serve.waitLog(`"admin":"([^"]*)".*"holdgate is ready"`)[1]
	return b
}

// wakeUp starts the engine, which says how many bytes it got and what length it was told.
func (b *behind) wakeUp() {
	l, err := net.Listen("tcp", b.engine)
	require.NoError(b.t, err)
	e := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%d of %d bytes", len(body), r.ContentLength)
		if r.Header.Get("X-Wait") != "" {
			_ = http.NewResponseController(w).Flush()
			b.begun <- struct{}{}
			<-b.finish
			_, _ = io.WriteString(w, ", and the end")
		}
	})}}
	e.Start()
	b.t.Cleanup(e.Close)
	b.t.Cleanup(b.letEnd)
	if b.awake != nil {
		b.awake()
	}
}

// requireChecked requires that holdgate envoy check finds nothing in a bootstrap.
func requireChecked(t *testing.T, dir, destination, text string) {
	t.Helper()
	file := filepath.Join(dir, "check.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(root(t), "bin", "holdgate"), "envoy", "check", "--destination", destination, file).CombinedOutput()
	require.NoError(t, err, string(out))
	t.Log(string(out))
}

// slots waits until so many slots of the backend are taken.
func (b *behind) slots(n string) {
	b.eventually(n+" slots", func() bool {
		found := regexp.MustCompile(`hivenet_agent_slots_in_use\{agent_id="[^"]*"\} (\d+)`).FindStringSubmatch(b.metrics())
		return len(found) == 2 && found[1] == n
	})
}

// followed goes through what a gateway must do: requests that are held, with keepalives and
// without, a warm one, slots that come back, and the end of Holdgate during an answer.
func (b *behind) followed(failOpen bool) {
	t := b.t
	held := map[string]<-chan result{}
	for _, keepalive := range []string{"on", "off"} {
		held[keepalive] = b.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", keepalive)
	}
	b.within("the engine is called", b.called)
	time.Sleep(3 * someKeepalives / 2)
	b.wakeUp()
	n := len(chatBody("m", false))
	whole := fmt.Sprintf("%d of %d bytes", n, n)
	for keepalive, answer := range held {
		r := <-answer
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Equal(t, whole, strings.TrimSpace(r.body), keepalive)
		require.Equal(t, keepalive == "on", strings.HasPrefix(r.body, " "), "only the first is relayed")
	}
	require.Equal(t, whole, b.post(chatPath, chatBody("m", false)).body)
	b.serve.waitLog("an access log comes from this Envoy")
	b.slots("0")
	running := b.start(t.Context(), chatPath, chatBody("m", false), "X-Wait", "1")
	b.within("it runs", b.begun)
	b.slots("1")

	require.NoError(t, b.serve.cmd.Process.Kill())
	require.Error(t, b.serve.ends())
	b.letEnd()
	r := <-running
	require.NoError(t, r.err)
	require.Equal(t, whole+", and the end", r.body, "what runs is not cut")
	want := http.StatusInternalServerError // that of a filter that could not call its server
	if failOpen {
		want = http.StatusOK
	}
	b.eventually("Envoy notices it", func() bool { return b.post(chatPath, chatBody("m", false)).status == want })
	for range 20 {
		r = b.post(chatPath, chatBody("m", false))
		require.Equal(t, want, r.status, r.body)
		if failOpen {
			// Nobody restores the length that a picker's filter drops.
			require.True(t, strings.HasPrefix(r.body, fmt.Sprintf("%d of ", n)), r.body)
		}
	}
}

func TestEnvoyGatewayWithHoldgateInItsPod(t *testing.T) {
	const page = "envoy-gateway.md"
	requireRendered(t, page, 1, "envoy-gateway-socket")
	requireRendered(t, page, 3, "ai-gateway")
	b := serveAs(t, page, "holdgate serve --destination route", "")
	text := envoyGateway(t, b.dir, b.listen, b.engine, envoyGatewayLog)
	requireChecked(t, b.dir, "route", text)
	b.runGateway(b.dir, text, b.listen, b.engine)
	b.followed(false)
}

// secured starts a Holdgate with certificates, for which a page's command has flags.
func secured(t *testing.T, page, begins, serveYAML string) (b *behind, secrets []any) {
	t.Helper()
	routers, envoys := certstest.New(t), certstest.New(t)
	routerCert, routerKey := routers.Issue(certstest.Named(routerName))
	envoyCert, envoyKey := envoys.Issue()
	extProc := closedPort(t)
	b = serveAs(t, page, begins, serveYAML, "0.0.0.0:9001", extProc, "/etc/holdgate/tls.crt", routerCert, "/etc/holdgate/tls.key", routerKey, "/etc/holdgate/ca.crt", envoys.File)
	b.extProc = extProc
	file := func(name string) tree { return tree{"filename": name} }
	return b, []any{
		tree{"tls_certificate": tree{"certificate_chain": file(envoyCert), "private_key": file(envoyKey)}},
		tree{"validation_context": tree{"trusted_ca": file(routers.File)}},
	}
}

// putSecrets gives a bootstrap the secrets that the gateway's control plane would send: the
// certificate and the authorities.
func putSecrets(t *testing.T, bootstrap tree, secrets []any) {
	t.Helper()
	names := map[string]int{}
	visit(bootstrap, func(m tree) {
		_, camel := m["sdsConfig"]
		_, snake := m["sds_config"]
		if !camel && !snake {
			return
		}
		delete(m, "sdsConfig")
		delete(m, "sds_config")
		name := m["name"].(string)
		names[name] = 0
		if strings.HasSuffix(name, "-ca") || strings.HasSuffix(name, "-cacert") {
			names[name] = 1
		}
	})
	require.Len(t, names, 2)
	var named []any
	for name, i := range names {
		secrets[i].(tree)["name"] = name
		named = append(named, secrets[i])
	}
	for _, key := range []string{"staticResources", "static_resources"} {
		if resources, ok := bootstrap[key].(tree); ok {
			resources["secrets"] = named
		}
	}
}

func TestEnvoyGatewayWithHoldgateAsAService(t *testing.T) {
	const page = "envoy-gateway.md"
	requireRendered(t, page, 2, "envoy-gateway-endpoint")
	b, secrets := secured(t, page, "holdgate serve --destination endpoint", engineBackend)
	bootstrap := translated(t, "envoy-gateway-endpoint")
	readdress(t, bootstrap, map[string]string{
		"0.0.0.0:8080": b.listen, "0.0.0.0:19003": "127.0.0.1:0", "10.96.0.1:8000": b.engine, routerName + ":9001": b.extProc,
	})
	putSecrets(t, bootstrap, secrets)
	text := bootstrapText(t, bootstrap)
	requireChecked(t, b.dir, "endpoint", text)
	b.runGateway(b.dir, text, b.listen, b.engine)
	b.followed(false)
}
