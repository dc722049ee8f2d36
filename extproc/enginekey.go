// SPDX-License-Identifier: Apache-2.0

package extproc

import "github.com/holdgate/holdgate/holdstate"

// keyHeaders are the headers that a key may stand in.
var keyHeaders = [...]string{headerAuthorization, headerAPIKey}

// engineKey is the header with the engine's own key, which takes the place of all
// keys of the caller. Its name is empty where the engine has none.
func (st *stream) engineKey(g holdstate.Grant) (header [2]string) {
	header[0], header[1] = st.s.d.Decider.EngineKey(st.req.Model, g)
	if header[0] != "" {
		// In the rehold lane the request comes with this key.
		st.flight.admission.StripKeys = true
	}
	return header
}

// keys replaces the caller's keys with the engine's own, or takes them away.
func (f *forwardHead) keys(own [2]string, strip bool) {
	if own[0] != "" {
		f.set = append(f.set, own)
	}
	for _, name := range keyHeaders {
		if strip && name != own[0] {
			f.remove = append(f.remove, name)
		}
	}
}
