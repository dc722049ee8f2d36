// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// genAI are the metrics that have the names of OpenTelemetry's conventions for generative AI. Their
// buckets are those of the conventions, and larger ones for requests that were held.
type genAI struct {
	known     func(model string) bool
	note      func(model string) // is called before a series of the model is made
	durations *prometheus.HistogramVec
	firsts    *prometheus.HistogramVec

	mu   sync.RWMutex
	made map[genAISeries]prometheus.Observer // those of durations, which every request needs one of
}

// genAISeries has the labels of one series of the durations.
type genAISeries struct{ operation, model, failure string }

// The labels of the conventions. genAIProvider is required there, and says whose form of telemetry
// this is.
const (
	labelOperation = "gen_ai_operation_name"
	labelProvider  = "gen_ai_provider_name"
	labelModel     = "gen_ai_request_model"
	labelError     = "error_type"
	genAIProvider  = "holdgate"
	// otherModel is the label of all models that are not known here.
	otherModel = "other"
)

func newGenAI(reg prometheus.Registerer, known func(string) bool, note func(string)) *genAI {
	f := promauto.With(reg)
	constant := prometheus.Labels{labelProvider: genAIProvider}
	durations := histogram("gen_ai_server_request_duration_seconds",
		"How long requests for models took, from their arrival to the last byte, in seconds.",
		.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36, 1310.72)
	firsts := histogram("gen_ai_server_time_to_first_token_seconds",
		"How long it took from the arrival of a request to the first byte of its relayed stream, in seconds.",
		.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60, 120, 300, 600, 1800)
	durations.ConstLabels, firsts.ConstLabels = constant, constant
	return &genAI{
		known: known, note: note, made: map[genAISeries]prometheus.Observer{},
		durations: f.NewHistogramVec(durations, []string{labelOperation, labelModel, labelError}),
		firsts:    f.NewHistogramVec(firsts, []string{labelOperation, labelModel}),
	}
}

// ended records a request that has ended. A redirected one counts where it was redirected to.
func (g *genAI) ended(r *extproc.Record) {
	q := &r.Request
	if q.Endpoint == nil || q.Model == "" || r.Verdict == extproc.VerdictRedirect {
		return
	}
	at := genAISeries{operationOf(q.Endpoint), q.Model, failureOf(r)}
	if r.Grant == nil && !g.known(q.Model) {
		at.model = otherModel
	}
	g.duration(at).Observe(r.Duration.Seconds())
	if r.FirstToken > 0 && at.failure == "" {
		g.firsts.WithLabelValues(at.operation, strings.Clone(at.model)).Observe(r.FirstToken.Seconds())
	}
}

// duration returns the series of the durations with these labels.
func (g *genAI) duration(at genAISeries) prometheus.Observer {
	g.mu.RLock()
	o := g.made[at]
	g.mu.RUnlock()
	if o != nil {
		return o
	}
	// Without the copy, the label could keep the string of a whole request in memory.
	at.model = strings.Clone(at.model)
	if at.model != otherModel {
		g.note(at.model) // without the lock, which remove takes while it has that of the models
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	o = g.durations.WithLabelValues(at.operation, at.model, at.failure)
	g.made[at] = o
	return o
}

// remove removes the series of a model.
func (g *genAI) remove(model string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.made, func(at genAISeries, _ prometheus.Observer) bool { return at.model == model })
	g.durations.DeletePartialMatch(prometheus.Labels{labelModel: model})
	g.firsts.DeletePartialMatch(prometheus.Labels{labelModel: model})
}

// operationOf returns the name of an operation in the conventions, or one of ours for those that
// they do not name.
func operationOf(e *extproc.Endpoint) string {
	switch {
	case e.CountTokens:
		return "count_tokens"
	case e.Kind == target.Embedding:
		return "embeddings"
	case e.Kind == target.Rerank:
		return "rerank"
	case e.API == refusal.OpenAI && strings.HasSuffix(e.Path, "/v1/completions"):
		return "text_completion"
	}
	return "chat"
}

// failureOf returns the code of the error that a request ended with, or else the status of an error;
// empty if it succeeded.
func failureOf(r *extproc.Record) string {
	switch {
	case r.ErrorCode != "":
		return r.ErrorCode
	case r.Status < http.StatusBadRequest && r.Status != 0:
		return ""
	}
	return strconv.Itoa(r.Status)
}
