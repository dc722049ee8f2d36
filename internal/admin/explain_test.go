// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/sitemap"
)

// call asks an API whose Explain repeats the question in its message.
func call(path, token string) *httptest.ResponseRecorder {
	h := Handler(Deps{
		Tokens: []string{"secret"}, Maps: sitemap.NewStore("here", nil), Metrics: prometheus.NewRegistry(),
		Ready: func() string { return "" }, Log: zerolog.Nop(),
		Explain: func(q ExplainQuery) (*Explanation, error) {
			switch q.Model {
			case "bad":
				return nil, fmt.Errorf("%w: no key has this id", ErrQuery)
			case "broken":
				return nil, errors.New("an inner matter")
			}
			return &Explanation{Model: q.Model, Kind: q.Kind.String(), KeyID: q.KeyID, Hops: q.Hops, Decision: DecisionHold, Steps: []Step{}}, nil
		},
		Status: func() *Status { return &Status{Ready: true, Models: []ModelStatus{}, Agents: []AgentStatus{}} },
		SiteStatus: func() *SiteStatus {
			return &SiteStatus{Routers: []RouterStatus{{Host: "pod-1", State: "ready"}}, Models: []ModelStatus{}}
		},
	})
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	h.ServeHTTP(w, r)
	return w
}

func TestExplainReadsTheQuestion(t *testing.T) {
	t.Parallel()
	w := call("/v1/explain?model=a%2Fb:c&kind=rerank&key=k&hops=2", "secret")
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"model":"a/b:c","kind":"rerank","key_id":"k","hops":2,"decision":"hold","steps":[]}`, w.Body.String())
	w = call("/v1/explain?model=m", "secret")
	require.JSONEq(t, `{"model":"m","kind":"chat","hops":0,"decision":"hold","steps":[]}`, w.Body.String())
}

func TestExplainRefusesAnUnclearQuestion(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                       "model is missing",
		"model=":                 "model is missing",
		"model=m&kind=video":     `kind: "video" is not a kind: use chat, embedding or rerank`,
		"model=m&kind=":          `kind: "" is not a kind: use chat, embedding or rerank`,
		"model=m&hops=-1":        "hops must be a number from 0 to 127",
		"model=m&hops=128":       "hops must be a number from 0 to 127",
		"model=m&model=n":        `"model" is given twice`,
		"model=m&scope=eu":       `"scope" is not a parameter: use model, kind, key and hops`,
		"model=m&%zz=1":          "the query is not well-formed",
		"model=bad&key=whatever": "the query is wrong: no key has this id",
	} {
		w := call("/v1/explain?"+query, "secret")
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		var body struct {
			Error struct{ Code, Message string } `json:"error"`
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body, json.MatchCaseInsensitiveNames(true)))
		require.Equal(t, "request_invalid", body.Error.Code)
		require.Equal(t, want, body.Error.Message)
	}
	w := call("/v1/explain?model=broken", "secret")
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.NotContains(t, w.Body.String(), "inner")
}

func TestExplainAndStatusNeedTheToken(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v1/explain?model=m", "/v1/status", "/v1/status?site=1"} {
		require.Equal(t, http.StatusUnauthorized, call(path, "").Code)
		require.Equal(t, http.StatusOK, call(path, "secret").Code)
	}
}

func TestStatusIsOfTheSiteIfAsked(t *testing.T) {
	t.Parallel()
	require.Contains(t, call("/v1/status?site=1", "secret").Body.String(), `"host":"pod-1"`)
	for _, path := range []string{"/v1/status", "/v1/status?site=0", "/v1/status?site="} {
		require.NotContains(t, call(path, "secret").Body.String(), "pod-1", path)
	}
}
