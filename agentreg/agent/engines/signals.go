// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"math"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Signals are how busy an engine reports to be; nil where it does not.
type Signals struct {
	// Running and Waiting are numbers of requests, KVUse is the share of the KV cache
	// in use.
	Running, Waiting *uint32
	KVUse            *float64
}

// InFlight is how many requests are inside the engine, nil when it is not known.
func (s Signals) InFlight() *uint32 {
	if s.Running == nil || s.Waiting == nil {
		return nil
	}
	return count(float64(*s.Running) + float64(*s.Waiting))
}

// signalSource is where an engine reports its signals.
type signalSource struct {
	path  string
	parse func(text []byte) (Signals, error)
}

// HasSignals reports whether the engine reports how busy it is.
func (e Engine) HasSignals() bool { return len(e.signals) > 0 }

// Signals returns the first signals that the engine reports, none when it does not
// answer. The error is about answers that could not be read.
func (e Engine) Signals(ctx context.Context, get Get) (Signals, error) {
	var errs []error
	for _, src := range e.signals {
		text, err := get(ctx, src.path)
		if err != nil {
			continue
		}
		s, err := src.parse(text)
		if err == nil {
			return s, errors.Join(errs...)
		}
		errs = append(errs, fmt.Errorf("%s: %w", src.path, err))
	}
	return Signals{}, errors.Join(errs...)
}

// prometheus is the names of an engine's metrics; empty where it has none.
type prometheus struct {
	running, waiting string
	kvUse            []string // the first that is there counts
}

// parse reads Prometheus's text format. An engine of several parts has a series
// for each: requests are added up, shares averaged.
func (p prometheus) parse(text []byte) (Signals, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return Signals{}, fmt.Errorf("reading metrics: %w", err)
	}
	var s Signals
	if sum, n := total(families[p.running]); n > 0 {
		s.Running = count(sum)
	}
	if sum, n := total(families[p.waiting]); n > 0 {
		s.Waiting = count(sum)
	}
	for _, name := range p.kvUse {
		if sum, n := total(families[name]); n > 0 && sum >= 0 {
			share := min(sum/float64(n), 1)
			s.KVUse = &share
			break
		}
	}
	return s, nil
}

// total adds up the series of a gauge, or of a metric without type, and counts them.
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

// count is a metric's value as a number of requests, nil if it is none.
func count(v float64) *uint32 {
	if !(v >= 0 && v <= math.MaxUint32) {
		return nil
	}
	n := uint32(v)
	return &n
}

// parseSlots reads llama.cpp's slots, which do not count requests that wait.
func parseSlots(text []byte) (Signals, error) {
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	if err := json.Unmarshal(text, &slots); err != nil {
		return Signals{}, fmt.Errorf("reading slots: %w", err)
	}
	running := 0
	for _, s := range slots {
		if s.Busy {
			running++
		}
	}
	return Signals{Running: count(float64(running))}, nil
}

// parseQueues reads the queues that Infinity reports in its list of models.
func parseQueues(text []byte) (Signals, error) {
	var list struct {
		Data []struct {
			Stats struct {
				Queue *float64 `json:"queue_absolute"`
			} `json:"stats"`
		} `json:"data"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return Signals{}, fmt.Errorf("reading queues: %w", err)
	}
	sum := 0.0
	for _, m := range list.Data {
		if m.Stats.Queue == nil {
			return Signals{}, errors.New("reading queues: a model has none")
		}
		sum += *m.Stats.Queue
	}
	return Signals{Waiting: count(sum)}, nil
}
