// SPDX-License-Identifier: Apache-2.0

package ticket

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/holdgate/holdgate/internal/hop"
)

const (
	// Life is how long a ticket is valid.
	Life = 60 * time.Second
	// Leeway is by how much the clocks of routers that share their secrets may differ.
	Leeway = 5 * time.Second

	// Remembered is how long it must be known that a ticket was accepted.
	Remembered = Life + 2*Leeway

	// maxTicket limits the bytes that are decoded before the MAC is checked.
	maxTicket = 4096
	// purpose is what keys are derived for.
	purpose = "holdgate ticket"
)

// The classes of errors of this package.
var (
	// ErrForged: the ticket is not from this router, or was changed.
	ErrForged = errors.New("x-holdgate-pass is not signed by this router")
	// ErrExpired: the ticket has expired, or is not valid yet.
	ErrExpired = errors.New("x-holdgate-pass is not valid at this time")
	// ErrUsed: another request with the ticket was accepted before.
	ErrUsed = errors.New("x-holdgate-pass was used before")
	// ErrMismatch: the ticket is for another request.
	ErrMismatch = errors.New("x-holdgate-pass was made for another request")
)

// Class returns the metric label for the class of an error, empty for an error of another
// package.
func Class(err error) string {
	switch {
	case errors.Is(err, ErrForged):
		return "forged"
	case errors.Is(err, ErrExpired):
		return "expired"
	case errors.Is(err, ErrUsed):
		return "used"
	case errors.Is(err, ErrMismatch):
		return "mismatch"
	}
	return ""
}

// Claims are the contents of a ticket and the request that it is for.
type Claims struct {
	RequestID string
	// Model is what the request is for, and AgentID and Engine describe the replica whose slot
	// it has.
	Model, AgentID, Engine string
	// Address is that of the replica, to which a gateway is to send the request; empty: it
	// goes where the gateway's route leads.
	Address string

	Method       string
	PathAndQuery string
	// Body is the SHA-256 of the body as it is sent, and Size the number of its bytes.
	Body [sha256.Size]byte
	Size int64
}

// wire is the payload of a ticket. The id of the token is random.
type wire struct {
	jwt.RegisteredClaims

	RequestID string `json:"request"`
	Model     string `json:"model"`
	AgentID   string `json:"agent"`
	Engine    string `json:"engine"`
	Address   string `json:"address,omitempty"`
	Head      string `json:"head"`
	Body      string `json:"body"`
	Size      int64  `json:"size"`
}

// Office signs tickets, and accepts each of them once. It is safe for concurrent use.
type Office struct {
	signing []byte
	all     jwt.VerificationKeySet
	parser  *jwt.Parser
	// elsewhere reports whether another router has accepted a ticket; nil: there is none.
	elsewhere func(id string) bool

	mu    sync.Mutex
	used  map[string]struct{}
	order []use // of used, the oldest first
}

// use is one ticket that was accepted.
type use struct {
	id string
	at time.Time
}

// New returns an Office. Without secrets (nil) its key is random.
func New(secrets *hop.Secrets) *Office {
	o := &Office{used: map[string]struct{}{}}
	var keys [][]byte
	leeway := time.Duration(0) // one process has one clock
	if secrets != nil {
		leeway = Leeway
		keys = secrets.Derive(purpose)
	} else {
		key := make([]byte, sha256.Size)
		_, _ = rand.Read(key) // never fails
		keys = append(keys, key)
	}
	o.signing = keys[0]
	for _, key := range keys {
		o.all.Keys = append(o.all.Keys, key)
	}
	o.parser = hop.NewParser(leeway)
	return o
}

// Share makes tickets good for one of several routers. usedElsewhere is called once with the id of
// each ticket that this router accepts, and returns true if another one has accepted it before.
// Share must be called before the Office is used.
func (o *Office) Share(usedElsewhere func(id string) bool) { o.elsewhere = usedElsewhere }

// Sign returns a ticket.
func (o *Office) Sign(c *Claims) (string, error) {
	now := time.Now()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, wire{
		ID: rand.Text(), IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(Life)),
		RequestID: c.RequestID, Model: c.Model, AgentID: c.AgentID, Engine: c.Engine, Address: c.Address,
		Head: hop.EncodeSum(hop.HeadSum(c.Method, c.PathAndQuery)), Body: hop.EncodeSum(c.Body), Size: c.Size,
	}).SignedString(o.signing)
	if err != nil {
		return "", fmt.Errorf("signing a ticket: %w", err)
	}
	if len(text) > maxTicket {
		return "", fmt.Errorf("signing a ticket: its %d bytes are more than the %d that a router reads", len(text), maxTicket)
	}
	return text, nil
}

// Accepted is a ticket that Accept accepted. The request may pass only if CheckBody
// succeeds, too.
type Accepted struct {
	RequestID              string
	Model, AgentID, Engine string
	Address                string
	Size                   int64

	body string
}

// Accept checks the MAC and the time of a ticket, that it is for this method and path, and
// that it was not accepted before.
func (o *Office) Accept(text, method, pathAndQuery string) (*Accepted, error) {
	if len(text) > maxTicket {
		return nil, fmt.Errorf("%w: it is no ticket at all", ErrForged)
	}
	var w wire
	_, err := o.parser.ParseWithClaims(text, &w, func(*jwt.Token) (any, error) { return o.all, nil })
	switch {
	case err == nil:
	case hop.AtWrongTime(err):
		return nil, ErrExpired
	default:
		return nil, ErrForged // the text of the error may have parts of what a client sent
	}
	if !hop.IsSum(w.Head, hop.HeadSum(method, pathAndQuery)) {
		return nil, fmt.Errorf("%w: method, path or query differ", ErrMismatch)
	}
	if !o.use(w.ID) || o.elsewhere != nil && o.elsewhere(w.ID) {
		return nil, ErrUsed
	}
	return &Accepted{RequestID: w.RequestID, Model: w.Model, AgentID: w.AgentID, Engine: w.Engine, Address: w.Address, Size: w.Size, body: w.Body}, nil
}

// CheckBody checks that the ticket is for a body with this SHA-256.
func (a *Accepted) CheckBody(sum [sha256.Size]byte) error {
	if !hop.IsSum(a.body, sum) {
		return fmt.Errorf("%w: the body differs", ErrMismatch)
	}
	return nil
}

// use notes that a ticket was accepted. It returns false if it had been accepted before. It
// forgets tickets that have expired since.
func (o *Office) use(id string) (first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	n := 0
	for n < len(o.order) && now.Sub(o.order[n].at) > Remembered {
		delete(o.used, o.order[n].id)
		n++
	}
	o.order = o.order[n:]
	if _, used := o.used[id]; used {
		return false
	}
	o.used[id] = struct{}{}
	o.order = append(o.order, use{id, now})
	return true
}
