// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"github.com/holdgate/holdgate/agentreg/agent/engines"
	"github.com/holdgate/holdgate/extproc"
	"github.com/holdgate/holdgate/holdstate"
)

// Engine is part of extproc.Call. Requests to a backend are changed as its configuration
// says. Requests to other engines, and to a backend without a key, get the key of the model.
func (c *call) Engine(model string, g holdstate.Grant) (e extproc.Engine) {
	at, o := g.Replica(), &c.d.o
	if at.Engine == engines.Ollama { // it refuses unknown hosts and origins
		e.Host, e.NoOrigin = at.Address, true
	}
	if w, own := o.Backends.Upstream(at.ID); own {
		e.Host, e.Prefix, e.TLS, e.SNI, e.NotTaken = w.Host, w.Prefix, w.CAFile, w.SNI, w.NotTaken
		if w.Key != "" {
			e.KeyHeader, e.Key = "authorization", "Bearer "+w.Key
		}
	}
	if e.KeyHeader == "" && o.Engines != nil {
		e.KeyHeader, e.Key = o.Engines.Current().Of(model)
	}
	return e
}
