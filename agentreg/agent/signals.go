// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// sampleEvery is how often a serving engine is asked how busy it is, and how
// long it may take to answer.
const sampleEvery = 2 * time.Second

// signals are what an engine says of itself; nil where it does not.
type signals struct {
	running, waiting *uint32
	kvUse            *float64
}

// inFlight is how many requests are inside the engine, nil when it is not known.
func (s signals) inFlight() *uint32 {
	if s.running == nil || s.waiting == nil {
		return nil
	}
	return count(float64(*s.running) + float64(*s.waiting))
}

// source is where an engine tells its signals.
type source struct {
	path  string
	parse func(text []byte) (signals, error)
}

// sample keeps core's view of how busy the engine is until ctx ends. It has a
// goroutine of its own: an engine that is slow to tell delays nothing but this.
func (a *agent) sample(ctx context.Context) {
	sources := engines[a.cfg.Engine].signals
	if len(sources) == 0 {
		return
	}
	defer a.core.setSignals(signals{})
	for {
		a.core.setSignals(a.askSignals(ctx, sources))
		if !pause(ctx, sampleEvery) {
			return
		}
	}
}

// askSignals gives nothing when the engine does not tell.
func (a *agent) askSignals(ctx context.Context, sources []source) signals {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	for _, src := range sources {
		text, err := a.api.get(ctx, src.path)
		if err != nil {
			continue
		}
		s, err := src.parse(text)
		if err != nil {
			a.log.Debug().Err(err).Str("path", src.path).Msg("the engine's signals cannot be read")
			continue
		}
		return s
	}
	return signals{}
}

// prometheus are the names of an engine's metrics; empty where it has none.
type prometheus struct {
	running, waiting string
	kvUse            []string // the first that is there counts
}

// parse reads Prometheus's text format. An engine of several parts has a series
// for each: requests are added up, shares averaged.
func (p prometheus) parse(text []byte) (signals, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return signals{}, fmt.Errorf("reading metrics: %w", err)
	}
	var s signals
	if sum, n := total(families[p.running]); n > 0 {
		s.running = count(sum)
	}
	if sum, n := total(families[p.waiting]); n > 0 {
		s.waiting = count(sum)
	}
	for _, name := range p.kvUse {
		if sum, n := total(families[name]); n > 0 && sum >= 0 {
			share := min(sum/float64(n), 1)
			s.kvUse = &share
			break
		}
	}
	return s, nil
}

// total adds up the series of a gauge, or of a metric without type. nil has none.
func total(family *dto.MetricFamily) (sum float64, n int) {
	for _, m := range family.GetMetric() {
		if v := m.GetGauge(); v != nil {
			sum, n = sum+v.GetValue(), n+1
		} else if v := m.GetUntyped(); v != nil {
			sum, n = sum+v.GetValue(), n+1
		}
	}
	return sum, n
}

// count makes a number of requests of a metric's value, nil of one that is none.
func count(v float64) *uint32 {
	if !(v >= 0 && v <= math.MaxUint32) {
		return nil
	}
	n := uint32(v)
	return &n
}

// parseSlots reads llama.cpp's slots, which know nothing of requests that wait.
func parseSlots(text []byte) (signals, error) {
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	if err := json.Unmarshal(text, &slots); err != nil {
		return signals{}, fmt.Errorf("reading slots: %w", err)
	}
	running := 0
	for _, s := range slots {
		if s.Busy {
			running++
		}
	}
	return signals{running: count(float64(running))}, nil
}

// parseQueues reads the queues that Infinity tells in its list of models.
func parseQueues(text []byte) (signals, error) {
	var list struct {
		Data []struct {
			Stats struct {
				Queue *float64 `json:"queue_absolute"`
			} `json:"stats"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return signals{}, fmt.Errorf("reading queues: %w", err)
	}
	sum := 0.0
	for _, m := range list.Data {
		if m.Stats.Queue == nil {
			return signals{}, errors.New("reading queues: a model has none")
		}
		sum += *m.Stats.Queue
	}
	return signals{waiting: count(sum)}, nil
}
