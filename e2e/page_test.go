// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/admin"
	eventlog "github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/sitemap"
)

var update = flag.Bool("update", false, "rewrite the pictures of docs/images")

// One browser shows a router that holds a request and wakes its model.
func TestThePageFollowsAWake(t *testing.T) {
	s := startSite(t)
	p := startBrowser(t).tab(1000, 900, "light")
	p.open("http://" + s.admin + "/")
	p.says("main", "m")
	require.Contains(t, p.text("main"), "So far every request was served at once.")
	p.accessible()
	p.live()

	// While nothing happens only the clock goes on, so that a reader or a selection stays.
	p.eval(`seen = document.getElementById("seen").textContent; document.getElementById("h-models").stays = true`)
	p.until(`document.getElementById("seen").textContent !== seen`)
	require.True(t, p.is(`document.getElementById("h-models").stays === true`))

	// The button is reached and pressed by the keyboard.
	const wake = `document.activeElement.dataset.wake`
	for i := 0; p.eval(wake) != "m"; i++ {
		require.Less(t, i, 20, "no way to the button with the Tab key")
		p.press("Tab")
	}
	p.press("Enter")
	p.says("#live", "m is")
	p.says("main tr:has(.starting)", "how long it takes is not known yet")
	p.until(`document.activeElement !== document.body`) // the button is gone, the focus is not

	// A request is held: its row and its decision come without a reload.
	p.eval(`window.stays = true`)
	held := s.start(t.Context(), chatPath, chatBody("m", false), "X-Wake-Keepalive", "off")
	p.says("section:has(#h-waiting)", "default")
	p.says("section:has(#h-decisions)", "no replica serves it")
	p.accessible()
	require.Equal(t, http.StatusNotFound, s.post(chatPath, chatBody("nowhere", false)).status)
	p.says("section:has(#h-decisions)", "404 model_not_found")

	e := newEngine(t, nil)
	a := s.register(hello("a", e.addr(), 4, "m"))
	require.Equal(t, http.StatusOK, (<-held).status)
	p.says("#live", "m is awake")
	p.says("main tr:has(.serving)", "m")
	p.says("section:has(#h-holds)", "up to")
	p.says("section:has(#h-agents)", "0 of 4")
	p.accessible()
	require.True(t, p.is(`window.stays === true`), "the page was loaded again")

	a.leave()
	p.says("#live", "m is waking") // the button said for how long it is wanted
	p.says("main tr:has(.starting)", "m")
	require.Empty(t, p.complaints())
	p.open("about:blank")
	s.atRest()
}

// live waits until the page reads events.
func (p *tab) live() {
	p.t.Helper()
	p.until(`document.getElementById("live").dataset.stream === "open"`)
}

// demo is a status for pictures and for checks of the layout.
func demo() *admin.Status {
	now := time.Now()
	return &admin.Status{
		Ready: true, SiteID: "fr-1", InFlight: 19,
		Map: &admin.MapStatus{Generation: 42, Source: "pushed", AgeSeconds: 5400},
		Models: []admin.ModelStatus{
			{Model: "llama-3.3-70b", State: "waking", Demand: 7, WakingSince: now.Add(-52 * time.Second), WakeSeconds: 80},
			{Model: "qwen3-coder-30b", State: "waking", Demand: 2, Waits: "waits for room in group gpu0, which gpu0-llama must free first, in 12s at the earliest"},
			{Model: "smollm2", State: "warm", Serving: 2, Demand: 0},
			{Model: "mistral-small", State: "asleep"},
			{Model: "bge-m3", State: "elsewhere"},
		},
		Waiting: []admin.WaitStatus{
			{Model: "llama-3.3-70b", Kind: "chat", KeyID: "acme-batch", Tenant: "acme", Requests: 5, Held: 5, Since: now.Add(-52 * time.Second)},
			{Model: "llama-3.3-70b", Kind: "chat", KeyID: "notebooks", Tenant: "research", Requests: 2, Held: 2, Since: now.Add(-9 * time.Second)},
			{Model: "qwen3-coder-30b", Kind: "chat", KeyID: "editor", Tenant: "acme", Requests: 2, Held: 2, Since: now.Add(-21 * time.Second)},
		},
		HoldTimes: []admin.HoldTime{{UpTo: 5, Requests: 14}, {UpTo: 10, Requests: 22}, {UpTo: 20, Requests: 9}, {UpTo: 30}, {UpTo: 60, Requests: 41}, {UpTo: 120, Requests: 12}},
		Agents: []admin.AgentStatus{
			{ID: "gpu0-llama", State: "waking", Models: []string{"llama-3.3-70b"}, Slots: 8},
			{ID: "gpu0-qwen", State: "asleep", Models: []string{"qwen3-coder-30b"}, Slots: 8},
			{ID: "cpu-a", State: "serving", Healthy: true, Models: []string{"smollm2"}, Slots: 16, InFlight: 11},
			{ID: "cpu-b", State: "serving", Models: []string{"smollm2"}, Slots: 16, InFlight: 8},
		},
		Gateways: []admin.GatewayStatus{{Envoy: "10.0.3.17", Requests: 1204, LastSeen: now.Add(-time.Second), Log: true}},
		Siblings: []admin.SiblingStatus{
			{Site: "de-1", URL: "https://de-1.example.com", Hints: []admin.HintStatus{
				{Model: "bge-m3", Kind: "embedding", State: "warm", ObservedAt: now.Add(-4 * time.Second)},
				{Model: "llama-3.3-70b", Kind: "chat", State: "cold", ObservedAt: now.Add(-4 * time.Second)},
			}},
		},
	}
}

// demoServer serves the page of a status, with some decisions.
func demoServer(t *testing.T, status func() *admin.Status, tokens ...string) (url string, log *eventlog.Log) {
	t.Helper()
	log = eventlog.NewLog()
	for _, e := range []eventlog.Event{
		{Type: eventlog.Held, Model: "llama-3.3-70b", Kind: "chat"},
		{Type: eventlog.Redirected, Model: "bge-m3", Kind: "embedding", Site: "de-1"},
		{Type: eventlog.Refused, Model: "gpt-4o", Kind: "chat", Status: 404, Reason: "model_not_found"},
		{Type: eventlog.Refused, Status: 401, Reason: "invalid_api_key"},
		{Type: eventlog.Held, Model: "qwen3-coder-30b", Kind: "chat"},
	} {
		log.Add(e)
	}
	server := httptest.NewServer(admin.Handler(admin.Deps{
		Tokens: tokens, Maps: sitemap.NewStore("a", nil), Metrics: prom.NewRegistry(), Log: zerolog.Nop(), Events: log, Status: status,
		Wake: func(string, time.Duration) error { return nil },
	}))
	t.Cleanup(func() {
		log.Close()
		server.Close()
	})
	return server.URL + "/", log
}

// The page is as wide as the window, light or dark, and axe finds nothing wrong with it. The
// pictures of the documentation are made from it.
func TestThePageFitsEveryWindow(t *testing.T) {
	url, _ := demoServer(t, demo)
	b := startBrowser(t)
	for name, c := range map[string]struct {
		width  int
		scheme string
	}{
		"page-light": {900, "light"}, "page-dark": {900, "dark"}, "page-phone": {360, "light"}, "page-phone-dark": {360, "dark"},
	} {
		p := b.tab(c.width, 800, c.scheme)
		p.open(url)
		p.until(`!document.querySelector("[data-wake]").hidden`)
		require.LessOrEqual(t, p.eval(`document.documentElement.scrollWidth`), float64(c.width), "%s scrolls to the side", name)
		dark := p.eval(`getComputedStyle(document.body).backgroundColor`) == "rgb(13, 17, 23)"
		require.Equal(t, c.scheme == "dark", dark)
		p.accessible()
		require.Empty(t, p.complaints(), name)
		if name == "page-phone-dark" {
			continue
		}
		file := filepath.Join(root(t), "docs", "images", name+".png")
		if *update {
			require.NoError(t, os.WriteFile(file, p.picture(c.width), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err, "make it with -update")
		require.Less(t, len(want), 200<<10)
		config, err := png.DecodeConfig(bytes.NewReader(want))
		require.NoError(t, err)
		require.Equal(t, c.width, config.Width)
	}
}

// picture returns a small picture of the whole page.
func (p *tab) picture(width int) []byte {
	p.t.Helper()
	var shot struct{ Data string }
	text := p.do("Page.captureScreenshot", params{"format": "png", "captureBeyondViewport": true, "clip": params{
		"x": 0, "y": 0, "width": width, "height": p.eval(`document.documentElement.scrollHeight`), "scale": 1,
	}})
	require.NoError(p.t, json.Unmarshal(text, &shot))
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	require.NoError(p.t, err)
	picture, err := png.Decode(bytes.NewReader(data))
	require.NoError(p.t, err)
	var small bytes.Buffer
	require.NoError(p.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, few(picture)))
	return small.Bytes()
}

// few returns a picture in its 256 most frequent colors.
func few(picture image.Image) *image.Paletted {
	bounds, counts := picture.Bounds(), map[color.Color]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[picture.At(x, y)]++
		}
	}
	palette := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	out := image.NewPaletted(bounds, palette[:min(len(palette), 256)])
	index := map[color.Color]uint8{}
	for c := range counts {
		index[c] = uint8(out.Palette.Index(c))
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			out.SetColorIndex(x, y, index[picture.At(x, y)])
		}
	}
	return out
}

// Without scripts the page shows the same, and has no button that does nothing.
func TestThePageWorksWithoutScripts(t *testing.T) {
	url, _ := demoServer(t, demo)
	p := startBrowser(t).tab(360, 800, "light")
	p.do("Emulation.setScriptExecutionDisabled", params{"value": true})
	p.open(url)
	require.Contains(t, p.text("main"), "52 s of about 1 min 20 s")
	require.True(t, p.is(`document.querySelector("[data-wake]").hidden`))
	p.until(`performance.getEntriesByType("navigation")[0].type !== "" && window.seen !== 1`)
	p.eval(`window.seen = 1`)
	p.until(`window.seen !== 1`) // loaded again
	require.Empty(t, p.complaints())
}

func TestThePageAsksForTheTokenOnce(t *testing.T) {
	url, log := demoServer(t, demo, "secret")
	b := startBrowser(t)
	p := b.tab(360, 800, "dark")
	p.open(url)
	require.NotContains(t, p.text("body"), "smollm2")
	p.accessible()
	require.Empty(t, p.complaints())
	for _, given := range []string{"wrong", "secret"} {
		p.until(`document.activeElement.id === "token"`)
		p.write(given)
		p.press("Enter")
		if given == "wrong" {
			p.says("#live", "not the token")
			p.complaints() // of the answer 401
		}
	}
	p.says("main", "smollm2")
	p.accessible()
	p.live()
	log.Add(eventlog.Event{Type: eventlog.Awake, Model: "mistral-small"})
	p.says("#live", "mistral-small is awake")
	p.eval(`document.querySelector("[data-wake]").click()`)
	p.says("#live", "mistral-small is wanted for 5m0s")
	p.open("about:blank")
	p.open(url)
	p.says("main", "smollm2") // the tab has kept it
	other := b.tab(360, 800, "light")
	other.open(url)
	other.until(`document.activeElement.id === "token"`) // another tab has not
	require.NotContains(t, other.text("body"), "smollm2")
	p.eval(`document.getElementById("forget").click()`)
	p.says("#live", "forgotten")
	require.NotContains(t, p.text("body"), "smollm2")
	require.True(t, p.is(`sessionStorage.length === 0`))
	require.True(t, p.is(`document.cookie === "" && localStorage.length === 0`))
	require.Empty(t, p.complaints())
}

// No name runs as a script, loads anything, or changes the direction of the page.
func TestNoNameRunsInThePage(t *testing.T) {
	const name = "<img src=x onerror='window.pwned=1'>\"'><script>window.pwned=1</script>\u202e{{.}}"
	hostile := demo()
	for i := range hostile.Models {
		hostile.Models[i].Model = fmt.Sprint(name, i)
	}
	hostile.SiteID, hostile.Models[1].Waits = name, name
	hostile.Waiting[0].KeyID, hostile.Waiting[1].Model, hostile.Agents[0].ID, hostile.Agents[0].Error = name, name, name, name
	hostile.Agents[1].Models, hostile.Siblings[0].Site, hostile.Siblings[0].URL = []string{name}, name, "javascript:window.pwned=1"
	url, log := demoServer(t, func() *admin.Status { return hostile })
	p := startBrowser(t).tab(360, 800, "light")
	p.open(url)
	p.live()
	for _, what := range []eventlog.Type{eventlog.Awake, eventlog.Refused, eventlog.Failed, eventlog.Held, eventlog.Asleep} {
		log.Add(eventlog.Event{Type: what, Model: name, Kind: name, Reason: name, Site: name})
	}
	p.says("#live", "<img src=x")
	p.says("section:has(#h-decisions)", "<script>")
	p.eval(`document.querySelector("[data-wake]").click()`)
	p.says("#live", "is wanted for")
	require.NotContains(t, p.text("body"), "\u202e")
	require.LessOrEqual(t, p.eval(`document.documentElement.scrollWidth`), float64(360))
	require.True(t, p.is(`!document.querySelector("main img, main script, main a")`))
	p.accessible()
	require.Nil(t, p.eval(`window.pwned`))
	require.Empty(t, p.complaints())
}
