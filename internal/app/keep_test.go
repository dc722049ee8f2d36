// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/holdstate"
)

const routedName = "hivenet_routing_requests_routed_total"

// names makes n names.
func names(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

// keysOf is a keys file with a key for each tenant, which is the name of the tenant.
func keysOf(tenants ...string) string {
	var text strings.Builder
	text.WriteString("keys:\n")
	for i, tenant := range tenants {
		fmt.Fprintf(&text, "- {id: k%d, tenant: %s, key_hash: %s}\n", i, tenant, hashOf(tenant))
	}
	return text.String()
}

// sum adds a metric's series whose labels contain part, and counts them.
func (r *rig) sum(name, part string) (series int, value float64) {
	for labels, v := range r.series(name) {
		if strings.Contains(labels, part) {
			series++
			value += v
		}
	}
	return series, value
}

func TestSeriesOfModelsThatAreGoneAreRemoved(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		count := func() int { return len(r.series(routedName)) }
		var p *played
		for i := range 20 {
			if p != nil {
				p.leave()
			}
			p = r.join(pb.State_STATE_SERVING, append(names(fmt.Sprint("x", i, "-"), protocol.MaxModels-1), "m")...)
		}
		for _, model := range []string{"m", "x0-0", "x19-0"} {
			r.App.metrics.Woke(model, time.Second)
			r.App.metrics.Queued(model, time.Second)
			r.App.metrics.Rejected(model, holdstate.ErrNoQueue)
		}
		require.Equal(t, 20*255+1, count())
		pass(9 * time.Minute)
		require.Equal(t, 20*255+1, count(), "an agent may come back")
		pass(3 * time.Minute)
		require.Equal(t, 256, count(), "what is registered stays")
		for _, name := range []string{"hivenet_wake_seconds", "hivenet_queue_wait_seconds", "hivenet_admission_rejections_total"} {
			gone, _ := r.sum(name, "model=x0-0")
			require.Zero(t, gone, name)
			require.Len(t, r.series(name), 2, name)
		}
		p.leave()
		pass(12 * time.Minute)
		require.Equal(t, 1, count(), "what is placed stays")
		require.Len(t, r.series("hivenet_wake_seconds"), 1)
	})
}

// Names of engines and regions come from agents too, whatever models they have.
func TestEnginesAndRegionsThatAreGoneAreRemoved(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		t := r.t
		for i := range 5 {
			p := r.joinAs("a", pb.State_STATE_SERVING, func(h *pb.Hello) { h.Region = fmt.Sprint("r", i) }, "m")
			if i < 4 {
				p.leave()
				pass(time.Second)
			}
		}
		require.Len(t, r.series(routedName), 5)
		pass(12 * time.Minute)
		require.Equal(t, map[string]float64{"engine=custom model=m region=r4 tenant_id=default": 0}, r.series(routedName))
	})
}

func TestAModelWithoutAnObservationHasNoHistogram(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		p := r.join(pb.State_STATE_SERVING, "m")
		for _, name := range []string{"hivenet_wake_seconds", "hivenet_queue_wait_seconds", "hivenet_admission_rejections_total"} {
			require.Empty(r.t, r.series(name), name)
		}
		require.Equal(r.t, map[string]float64{"engine=custom model=m region= tenant_id=default": 0}, r.series(routedName))
		p.leave()
	})
}

func TestTenantsHaveTheirSeriesAtZeroUpToALimit(t *testing.T) {
	t.Parallel()
	tenants := names("t", 1500)
	keys := temporary(t, keysOf(tenants...))
	bubble(t, func(r *rig) {
		t := r.t
		p := r.join(pb.State_STATE_SERVING, "m")
		series, value := r.sum(routedName, "model=m")
		require.Equal(t, 1000, series)
		require.Zero(t, value)
		last := r.tenants()[1499]
		for _, tenant := range []string{last, r.tenants()[0]} {
			require.Contains(t, r.chat("m", "x-api-key", tenant).all(), "serve on")
		}
		pass(time.Second)
		r.envoyEnds()
		series, value = r.sum(routedName, "model=m")
		require.Equal(t, 1001, series)
		require.Equal(t, 2, int(value))
		require.Equal(t, 1, r.count(routedName, "custom", "m", "", last))

		require.NoError(t, os.WriteFile(keys, []byte(keysOf("new")), 0o600))
		require.NoError(t, r.keys.Reload())
		pass(12 * time.Minute)
		require.Equal(t, map[string]float64{"engine=custom model=m region= tenant_id=new": 0}, r.series(routedName))
		p.leave()
	}, "--auth-file", keys)
}

func TestHistogramsHaveNativeBucketsBesideTheClassicOnes(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		r.App.metrics.Woke("m", time.Second)
		r.App.metrics.Queued("m", time.Second)
		r.App.metrics.HoldEnded(holdstate.OutcomeReleased, time.Second)
		p := r.chat("unknown")
		p.gone()
		pass(time.Minute)
		families, err := r.prometheus.Gather()
		require.NoError(r.t, err)
		seen := 0
		for _, f := range families {
			if f.GetType() != dto.MetricType_HISTOGRAM || strings.HasPrefix(f.GetName(), "go_") {
				continue
			}
			seen++
			h := f.GetMetric()[0].GetHistogram()
			require.NotNil(r.t, h.Schema, f.GetName())
			require.NotEmpty(r.t, h.GetBucket(), f.GetName())
		}
		require.Equal(r.t, 6, seen)
	})
}
