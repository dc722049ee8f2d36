// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"errors"
	"slices"
	"strconv"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/wire"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/ticket"
)

// comeBack lets a request with a valid ticket pass. It is a part of the request that is
// relayed, which has a flight, a slot and a charge, so it gets none of its own. A request with
// an invalid ticket is refused: without its ticket it would be decided and charged again.
func (p *pass) comeBack() error {
	t, err := p.s.d.Tickets.Accept(p.head.ticket, string(p.head.method), string(p.head.path))
	if err == nil {
		err = p.readReturned(t)
	}
	switch {
	case err == nil:
		p.passOn(t)
	case !errors.Is(err, errGone):
		p.s.d.Observer.TicketRefused(err)
		if p.begin() {
			return p.refuse(refusal.TicketInvalid(err.Error()))
		}
	}
	return nil
}

// readReturned receives the body that a ticket is for. The memory of all bodies has it
// already, as that of the request that is relayed: to wait for more could stop both. Its error
// is errGone, or says what is wrong with the ticket.
func (p *pass) readReturned(t *ticket.Accepted) error {
	for end := p.first.End; !end; {
		in := wire.Inbound{}
		if !p.receive(&in) {
			return errGone
		}
		end = in.End
		p.upload.add(&in)
		if p.upload.body.Size() > t.Size {
			break // CheckBody refuses it
		}
	}
	return t.CheckBody(p.upload.body.Sum()) //nolint:wrapcheck // its text is for the caller
}

// passOn sends the request on as the gateway routes it, or to the replica whose slot it has,
// without what its engine must not see. The relay has left the caller's keys in it, because filters of the gateway may need them.
func (p *pass) passOn(t *ticket.Accepted) {
	forward, e := p.s.d.Decider.Returned(t.Model, holdstate.Replica{ID: t.AgentID, Engine: t.Engine})
	f := wire.ForwardHead{
		Metadata: wire.HeaderList{
			{envoy.ModeKey, envoy.ModeRelayed},
			{envoy.ContentLengthKey, strconv.FormatInt(p.upload.body.Size(), 10)},
		},
		Remove: slices.Clone(p.head.private),
	}
	e.keys(&f, forward.StripKeys || e.KeyHeader != "")
	if e.NoOrigin {
		f.Remove = append(f.Remove, headerOrigin)
	}
	if string(p.head.requestID) != t.RequestID { // the gateway may have replaced it
		f.Set = append(f.Set, [2]string{headerRequestID, t.RequestID})
	}
	switch {
	case t.Address != "":
		p.s.pick(&f, &p.head, t.Address)
	case p.strangerPicks():
		f.Remove = append(f.Remove, envoy.PickedHeader)
	}
	if p.upload.trailers {
		p.forwardWhole(&f)
	} else {
		p.forward(f.Encode())
	}
}
