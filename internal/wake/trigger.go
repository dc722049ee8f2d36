// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"cmp"
	"strconv"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/internal/target"
)

// The limits of a threshold. Kubernetes rounds to thousandths, so a smaller threshold would
// become 0. maxThreshold is far more than a replica can serve at once.
const (
	minThreshold = 0.001
	maxThreshold = 1e9
)

// trigger is the metadata of a ScaledObject's trigger.
type trigger struct {
	model, kind string
	threshold   float64
	window      time.Duration
}

// trigger parses and checks the metadata of a ScaledObject's trigger. Unknown entries are
// ignored, since KEDA adds some of its own.
func (k *KEDA) trigger(ref *externalscaler.ScaledObjectRef) (trigger, error) {
	meta := ref.GetScalerMetadata()
	t := trigger{model: meta["model"], kind: meta["kind"], threshold: 1, window: DefaultWindow}
	if t.model == "" {
		return t, status.Error(codes.InvalidArgument, "the trigger's metadata must have the entry model")
	}
	if t.kind != "" {
		if _, err := target.ParseKind(t.kind); err != nil {
			return t, status.Errorf(codes.InvalidArgument, "metadata kind: %v", err)
		}
	}
	if s := meta["threshold"]; s != "" {
		v, err := strconv.ParseFloat(s, 64)
		// The negated condition also rejects NaN.
		if err != nil || !(v >= minThreshold && v <= maxThreshold) {
			return t, status.Errorf(codes.InvalidArgument, "metadata threshold: %q is not a number from 0.001 to 1e9", s)
		}
		t.threshold = v
	}
	if s := meta["window"]; s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 || d > MaxWindow {
			return t, status.Errorf(codes.InvalidArgument, "metadata window: %q is not a time above 0 and up to %s, such as 2m", s, MaxWindow)
		}
		t.window = d
	}
	return t, k.check(t)
}

// check returns an error if the router does not know the model.
func (k *KEDA) check(t trigger) error {
	if k.models.Known(t.model, t.kind) {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "the router has no model %q for %s endpoints: is it in the sibling map?",
		t.model, cmp.Or(t.kind, "any"))
}
