// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/extproc/extproctest"
)

// Everything but a request that is served at once is noted, and each thing once.
func TestWhatHappensToARequestIsNoted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(r *rig)
		want []string
	}{
		"served at once": {func(r *rig) {
			t := r.t
			r.slots.up(engineA, 1)
			r.ends(t, r.served(t))
		}, nil},
		"held until its budget ends": {func(r *rig) {
			t := r.t
			r.ask(t, chat(false))
			elapse(budget)
		}, []string{"held m", "refused m model_waking"}},
		"held, after a keepalive": {func(r *rig) {
			t := r.t
			r.ask(t, chat(true))
			elapse(budget)
		}, []string{"held m", "refused m model_waking"}},
		"left": {func(r *rig) {
			t := r.t
			x := r.ask(t, chat(false))
			x.Reset()
		}, []string{"held m", "left m"}},
		"refused": {func(r *rig) {
			t := r.t
			r.ask(t, extproctest.Request(chatPath, `{"model":"other"}`))
		}, []string{"refused other model_not_found"}},
		"refused without a model": {func(r *rig) {
			t := r.t
			r.ask(t, extproctest.Request(chatPath, `nonsense`))
		}, []string{"refused  request_invalid"}},
		"redirected": {func(r *rig) {
			t := r.t
			r.decide = func(*Request) Decision {
				return Decision{Redirect: &Redirect{Site: "b", Location: "https://b.example.com"}}
			}
			r.ask(t, chat(false))
		}, []string{"redirected m b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(r *rig) {
				c.do(r)
				elapse(logWait)
				require.Equal(t, c.want, r.noted)
			})
		})
	}
}
