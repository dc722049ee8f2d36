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

// Signals is how busy an engine is by its own report; a field is nil if it does not report it.
type Signals struct {
	// Running and Waiting are numbers of requests, KVUse is the used part of the KV cache,
	// from 0 to 1.
	Running, Waiting *uint32
	KVUse            *float64
}

// InFlight returns how many requests are in the engine, nil if that is not known.
func (s Signals) InFlight() *uint32 {
	if s.Running == nil || s.Waiting == nil {
		return nil
	}
	return requestCount(float64(*s.Running) + float64(*s.Waiting))
}

// signalSource is an endpoint that reports signals.
type signalSource struct {
	path  string
	parse func(text []byte) (Signals, error)
}

// HasSignals reports whether the engine reports how busy it is.
func (e Engine) HasSignals() bool { return len(e.signals) > 0 }

// Signals returns the signals of the first endpoint whose response can be parsed. All fields
// are nil if there is none. The error is about responses that could not be parsed.
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

// prometheus has the names of an engine's metrics, empty for those that it does not have.
type prometheus struct {
	running, waiting string
	kvUse            []string // the first that exists is used
}

// parse parses Prometheus's text format. An engine with several workers has a series for
// each: numbers of requests are added up, the use of the cache is averaged.
func (p prometheus) parse(text []byte) (Signals, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return Signals{}, fmt.Errorf("reading metrics: %w", err)
	}
	var s Signals
	if sum, n := sumGauges(families[p.running]); n > 0 {
		s.Running = requestCount(sum)
	}
	if sum, n := sumGauges(families[p.waiting]); n > 0 {
		s.Waiting = requestCount(sum)
	}
	for _, name := range p.kvUse {
		if sum, n := sumGauges(families[name]); n > 0 && sum >= 0 {
			share := min(sum/float64(n), 1)
			s.KVUse = &share
			break
		}
	}
	return s, nil
}

// sumGauges returns the sum and the number of the series of a gauge, or of a metric without type.
func sumGauges(family *dto.MetricFamily) (sum float64, n int) {
	for _, m := range family.GetMetric() {
		if v := m.GetGauge(); v != nil {
			sum, n = sum+v.GetValue(), n+1
		} else if v := m.GetUntyped(); v != nil {
			sum, n = sum+v.GetValue(), n+1
		}
	}
	return sum, n
}

// requestCount returns a metric's value as a number of requests, nil if it is not one.
func requestCount(v float64) *uint32 {
	if !(v >= 0 && v <= math.MaxUint32) {
		return nil
	}
	n := uint32(v)
	return &n
}

// parseSlots parses llama.cpp's slots, which do not show waiting requests.
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
	return Signals{Running: requestCount(float64(running))}, nil
}

// parseQueues parses the queues that Infinity reports in its list of models.
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
	return Signals{Waiting: requestCount(sum)}, nil
}
