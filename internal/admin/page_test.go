// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/holdgate/holdgate/internal/events"
	"github.com/holdgate/holdgate/sitemap"
)

// busy returns a status in which every text comes from name.
func busy(name func(what string) string) *Status {
	now := time.Now()
	model := func(state, waits string, since time.Time, seconds float64) ModelStatus {
		return ModelStatus{Model: name("model " + state), State: state, Serving: 1, Demand: 2, Waits: waits, WakingSince: since, WakeSeconds: seconds}
	}
	return &Status{
		NotReady: name("why"), SiteID: name("site"),
		Map: &MapStatus{Source: "pushed"},
		Models: []ModelStatus{
			model("warm", "", time.Time{}, 0), model("asleep", "", time.Time{}, 0), model("elsewhere", "", time.Time{}, 0),
			model("waking", "", now.Add(-5*time.Second), 10), model("waking", name("waits"), now, 0),
		},
		Agents: []AgentStatus{{
			ID: name("agent"), State: "serving", Models: []string{name("m"), name("n")}, Slots: 4, InFlight: 1, Error: name("error"),
		}},
		Waiting: []WaitStatus{
			{Model: name("model"), Kind: "chat", KeyID: name("key"), Tenant: name("tenant"), Requests: 2, Since: now.Add(-3 * time.Second)},
			{Model: name("model"), Kind: "chat", Tenant: name("tenant"), Requests: 1, Since: now},
		},
		HoldTimes: []HoldTime{{UpTo: 10, Requests: 3}, {Requests: 1}},
		Gateways:  []GatewayStatus{{Envoy: name("gateway"), Requests: 3, LastSeen: now.Add(-4 * time.Second)}},
		Siblings: []SiblingStatus{{
			Site: name("sibling"), URL: name("https://b.example"),
			Hints: []HintStatus{{Model: name("model"), Kind: "chat", State: "warm", ObservedAt: now}}, HintsMore: 2,
		}},
	}
}

// pageOf serves the page of a status in which every text comes from name.
func pageOf(name func(what string) string, tokens ...string) http.Handler {
	log := events.NewLog()
	log.Add(events.Event{Type: events.Held, Model: name("held"), Kind: "chat"})
	log.Add(events.Event{Type: events.Redirected, Model: name("redirected"), Kind: "chat", Site: name("to")})
	log.Add(events.Event{Type: events.Refused, Status: 404, Reason: name("code"), Model: name("refused"), Kind: "chat"})
	return Handler(Deps{
		Tokens: tokens, Maps: sitemap.NewStore("a", nil), Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), Events: log,
		Status: func() *Status { return busy(name) },
	})
}

func plain(what string) string { return what }

func ask(t *testing.T, h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Host = "localhost:9003"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestThePageShowsTheStatus(t *testing.T) {
	t.Parallel()
	w := ask(t, pageOf(plain), http.MethodGet, "/", "")
	require.Equal(t, http.StatusOK, w.Code)
	text := strings.Join(strings.Fields(w.Body.String()), " ")
	for _, want := range []string{
		`http-equiv="refresh"`, // for browsers without scripts
		"Not ready: why", "queued for the group", "waits", "starting", "5 s of about 10 s", `max="10" value="5"`,
		`<bdi>key</bdi>`, `<bdi>tenant</bdi>`, "3 s", "up to 10 s", "over 10 s", "1 of 4", "The last wake failed: error",
		`data-wake="model asleep"`, "2 more hints", "<bdi>gateway</bdi>", "4 s ago", "its requests have no slots", "404 code", "to site to", "no replica serves it",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 1, strings.Count(text, "data-wake"), "only a model that sleeps can be woken")
}

// shape returns the elements of a page and the names of their attributes, without what is in them.
func shape(t *testing.T, page string) (list []string) {
	t.Helper()
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		switch kind := z.Next(); kind {
		case html.ErrorToken:
			return list
		case html.StartTagToken, html.SelfClosingTagToken, html.EndTagToken, html.CommentToken:
			token := z.Token()
			text := kind.String() + " " + token.Data
			if kind == html.CommentToken {
				text = "comment"
			}
			for _, a := range token.Attr {
				text += " " + a.Key
				if slices.Contains([]string{"class", "id", "href", "src", "action", "method"}, a.Key) {
					text += "=" + a.Val
				}
			}
			list = append(list, text)
		default:
		}
	}
}

// Whatever a name is, the page has the elements and attributes that it has with plain names, and
// no character that is not printed.
func TestNoNameChangesThePage(t *testing.T) {
	t.Parallel()
	want := shape(t, ask(t, pageOf(plain), http.MethodGet, "/", "").Body.String())
	require.Greater(t, len(want), 100)
	for _, hostile := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onfocus=alert(1) autofocus x='`, `</bdi></td></table><h1>`,
		`javascript:alert(1)`, `{{.Tokens}}`, `<!--`, `]]>`, `--><svg onload=alert(1)>`, "`${alert(1)}`", `&lt;script&gt;`, `</title><script>`,
		"a\u202Egnp.exe", "\u2066\u2067\u2068x", "a\x00b\x1b[31mc\r\nd\te", "\u200b\ufeff", "\xff\xfe", strings.Repeat("w", 5000), " ", "日本語 🦙 العربية",
	} {
		h := pageOf(func(string) string { return hostile })
		for _, path := range []string{"/", "/page/main"} {
			text := ask(t, h, http.MethodGet, path, "").Body.String()
			if path == "/" {
				require.Equal(t, want, shape(t, text), "%q", hostile)
			}
			// The name in the attribute is for the call of the button, not for the eye.
			visible := regexp.MustCompile(`data-wake="[^"]*"`).ReplaceAllString(text, "")
			for _, c := range "\u202e\u2066\u2067\u2068\u200b\ufeff\x00\x1b\r" {
				require.False(t, strings.ContainsRune(visible, c), "%q has %q", hostile, c)
			}
		}
	}
}

func TestThePageOfARouterWithATokenShowsNothingWithoutIt(t *testing.T) {
	t.Parallel()
	h := pageOf(plain, "secret")
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	locked := func(w *httptest.ResponseRecorder) {
		t.Helper()
		text := w.Body.String()
		require.Contains(t, text, `type="password"`)
		require.Contains(t, text, "data-locked")
		for _, secret := range []string{"model", "agent", "key", "tenant", "site"} {
			require.NotContains(t, strings.ReplaceAll(strings.ReplaceAll(text, "To the models", ""), "holdgate-token", ""), "<bdi>"+secret)
		}
		require.NotContains(t, text, "http-equiv")
	}
	w := ask(t, h, http.MethodGet, "/", "")
	require.Equal(t, http.StatusOK, w.Code)
	locked(w)
	w = ask(t, h, http.MethodPost, "/", url.Values{"token": {"wrong"}}.Encode(), form...)
	require.Equal(t, http.StatusUnauthorized, w.Code)
	locked(w)
	require.Contains(t, w.Body.String(), "This is not the token")
	for _, body := range []string{"", "token=", "token=" + strings.Repeat("x", 5<<10), "%zz", "token=wrong&token=secret"} {
		require.Equal(t, http.StatusUnauthorized, ask(t, h, http.MethodPost, "/", body, form...).Code, body)
	}
	require.Equal(t, http.StatusUnauthorized, ask(t, h, http.MethodPost, "/?token=secret", "", form...).Code, "not in an address, which is logged")
	require.Equal(t, http.StatusUnauthorized, ask(t, h, http.MethodGet, "/page/main", "").Code)
	require.Equal(t, http.StatusForbidden, ask(t, h, http.MethodPost, "/", "token=secret", append(form, "Sec-Fetch-Site", "cross-site")...).Code)

	w = ask(t, h, http.MethodPost, "/", "token=secret", form...)
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "<bdi>key</bdi>")
	require.NotContains(t, w.Body.String(), "secret")
	w = ask(t, h, http.MethodGet, "/page/main", "", "Authorization", "Bearer secret")
	require.Contains(t, w.Body.String(), "<bdi>key</bdi>")
	w = ask(t, h, http.MethodGet, "/", "", "Authorization", "Bearer secret")
	require.Contains(t, w.Body.String(), "<bdi>key</bdi>")
}

func TestThePagesHeaders(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/page/main", "/page/page.js", "/page/page.css", "/page/icon.svg"} {
		w := ask(t, pageOf(plain), http.MethodGet, path, "")
		require.Equal(t, http.StatusOK, w.Code, path)
		h := w.Header()
		require.Equal(t, policy, h.Get("Content-Security-Policy"), path)
		require.Equal(t, []string{"nosniff", "no-store", "no-referrer", "same-origin", "same-origin"}, []string{
			h.Get("X-Content-Type-Options"), h.Get("Cache-Control"), h.Get("Referrer-Policy"), h.Get("Cross-Origin-Opener-Policy"), h.Get("Cross-Origin-Resource-Policy"),
		}, path)
		text := w.Body.String()
		require.NotContains(t, text, "style=", path)
		require.NotRegexp(t, `(?i)(src|href|action|url)\s*[=(]\s*['"]?(https?:)?//`, text, path)
		require.NotRegexp(t, `\son[a-z]+=`, text, path)
	}
	require.Contains(t, ask(t, pageOf(plain), http.MethodGet, "/page/page.js", "").Header().Get("Content-Type"), "javascript")
	for _, path := range []string{"/page/", "/page/page.go", "/page/page.html", "/page/..%2fpage.html", "/x", "/page/main/x"} {
		require.Equal(t, http.StatusNotFound, ask(t, pageOf(plain), http.MethodGet, path, "").Code, path)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	r.Host = "attacker.example"
	w := httptest.NewRecorder()
	pageOf(plain).ServeHTTP(w, r)
	require.Equal(t, http.StatusForbidden, w.Code, "DNS rebinding")
}

func TestTheAgeOfTheMapChangesOnceAMinute(t *testing.T) {
	t.Parallel()
	for age, want := range map[int64]string{0: "less than a minute", 59: "less than a minute", 60: "1 min 0 s", 119: "1 min 0 s", 5400: "1 h 30 min"} {
		require.Equal(t, "Map of generation 7, pushed "+want+" ago", mapText(&MapStatus{Generation: 7, Source: "pushed", AgeSeconds: age}))
	}
}

func TestALargeStatusMakesASmallPage(t *testing.T) {
	t.Parallel()
	s := &Status{Ready: true}
	for i := range 5000 {
		s.Models = append(s.Models, ModelStatus{Model: fmt.Sprint("m", i), State: "asleep"})
		s.Agents = append(s.Agents, AgentStatus{ID: fmt.Sprint("a", i), State: "asleep"})
	}
	s.Models[4999].State = "waking"
	v := newView(s, nil, time.Now())
	require.Len(t, v.Models, maxRows)
	require.Equal(t, "m4999", v.Models[0].Name, "what happens comes first")
	require.Equal(t, 5000-maxRows, v.ModelsMore)
	require.Len(t, v.Agents, maxRows)
}

func TestProgressSaysHowLongAWakeTakes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		model       ModelStatus
		of, elapsed int
		text        string
	}{
		"not seen":         {ModelStatus{State: "waking"}, 0, 0, ""},
		"never measured":   {ModelStatus{State: "waking", WakingSince: now.Add(-90 * time.Second)}, 0, 0, "for 1 min 30 s; how long it takes is not known yet"},
		"in time":          {ModelStatus{State: "waking", WakingSince: now.Add(-30 * time.Second), WakeSeconds: 40}, 40, 30, "30 s of about 40 s"},
		"late":             {ModelStatus{State: "waking", WakingSince: now.Add(-time.Hour), WakeSeconds: 40}, 40, 40, "1 h 0 min, longer than usual (40 s)"},
		"shorter than 1 s": {ModelStatus{State: "waking", WakingSince: now, WakeSeconds: 0.2}, 1, 0, "0 s of about 0 s"},
		"the clock jumped": {ModelStatus{State: "waking", WakingSince: now.Add(time.Hour), WakeSeconds: 40}, 40, 0, "0 s of about 40 s"},
	} {
		v := viewModel(&c.model, now)
		require.True(t, v.Progress, name)
		require.Equal(t, c.text, v.ProgressText, name)
		require.Equal(t, []int{c.of, c.elapsed}, []int{v.Of, max(0, v.Elapsed)}, name)
	}
}
