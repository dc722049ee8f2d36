// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
)

// The limits of the time before a link connects again, which doubles with each failure.
const (
	minBackoff     = 100 * time.Millisecond
	maxLinkBackoff = 2 * time.Second
)

// RejectedError is the error of an agent whose configuration a router rejects.
type RejectedError struct {
	Router, Code, Message string
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("router %s rejects this agent: %s: %s", e.Router, e.Code, e.Message)
}

var errSameRouter = errors.New("another connection leads to the same router")

// link keeps a connection to one address of a router.
type link struct {
	agent   *agent
	address string          // ip:port or unix:///path
	host    string          // the name that the router's certificate must have
	router  string          // the id of the last router at the address
	logged  map[string]bool // the problems logged since the link was last connected

	group     *sync.WaitGroup     // of all links to the router; the link is one of them
	gone      func() bool         // reports that the router no longer has this address
	another   func(former string) // starts another link to the address
	succeeded bool                // a link to the successor of the router was started
	former    string              // the id of the router that the one at the address has replaced, to which the link leads; empty: to the one at the address
}

// start runs the link as one of its group.
func (l *link) start(ctx context.Context) { l.group.Go(func() { l.run(ctx) }) }

// succeed starts another link to the same address: the router that this link is connected to is
// being replaced by another process there. This link keeps its connection until that router
// ends it, and then ends.
func (l *link) succeed() {
	if !l.succeeded {
		l.succeeded = true
		l.another("")
	}
}

// connectFormer starts a link to a router that the one at the address has replaced, unless there
// is one.
func (l *link) connectFormer(id string) {
	if id != "" && !l.agent.core.connected(id) && l.agent.formers.add(id) {
		l.another(id)
	}
}

// once reports that the link ends with its connection: the router is being replaced, and its
// address leads to another one.
func (l *link) once() bool { return l.succeeded || l.former != "" }

// run connects, and reconnects when the connection ends, until ctx ends, the router no longer
// has this address, or another link has replaced this one.
func (l *link) run(ctx context.Context) {
	l.another = func(former string) {
		(&link{agent: l.agent, address: l.address, host: l.host, group: l.group, gone: l.gone, former: former}).start(ctx)
	}
	if l.former != "" {
		defer l.agent.formers.remove(l.former)
	}
	backoff := minBackoff
	for ctx.Err() == nil && !l.gone() {
		welcomed, err := l.connectOnce(ctx)
		if rejected, ok := errors.AsType[*RejectedError](err); ok {
			l.agent.fail(rejected)
			return
		}
		if ctx.Err() != nil || l.once() {
			return
		}
		if errors.Is(err, errMoved) {
			continue
		}
		if welcomed {
			backoff = minBackoff
		}
		l.logProblem(err)
		if !pause(ctx, backoff/2+rand.N(backoff/2)) { //nolint:gosec // jitter is no secret
			return
		}
		backoff = min(backoff*2, maxLinkBackoff)
	}
}

// numbers matches ports and times, which differ between errors of the same problem.
var numbers = regexp.MustCompile("[0-9]+")

// logProblem logs a problem that is new since the link was last connected.
func (l *link) logProblem(err error) {
	if err == nil || errors.Is(err, errSameRouter) {
		return
	}
	problem := numbers.ReplaceAllString(err.Error(), "")
	if l.logged[problem] {
		return
	}
	line := l.agent.log.Warn().Str("router", l.address).Err(err)
	if len(l.logged) == 0 {
		l.logged = map[string]bool{}
		line = line.Str("next", "the agent tries again")
	}
	l.logged[problem] = true
	if advice := l.agent.cfg.TLS.advice(err.Error()); advice != "" {
		line = line.Str("advice", advice)
	}
	line.Msg("not connected to the router")
}

// connectOnce connects and serves the connection until it ends. welcomed reports whether the
// router accepted the agent.
func (l *link) connectOnce(ctx context.Context) (welcomed bool, err error) {
	if l.agent.core.connected(l.router) {
		return false, errSameRouter
	}
	conn, err := l.dial()
	if err != nil {
		return false, fmt.Errorf("connecting to %s: %w", l.address, err)
	}
	defer func() { _ = conn.Close() }()
	for {
		welcomed, err = l.converse(ctx, conn)
		// The address may lead to another process by now, but this connection does not.
		if !l.once() || !errors.Is(err, errMoved) || conn.GetState() != connectivity.Ready {
			return welcomed, err
		}
	}
}

// converse serves one stream of a connection until it ends.
func (l *link) converse(ctx context.Context, conn *grpc.ClientConn) (welcomed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The stream outlives ctx: by byeTime while it is being opened, afterwards by the drain
	// timeout and byeTime.
	streamCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	outlive := func(d time.Duration) (stop func() bool) {
		return context.AfterFunc(ctx, func() { time.AfterFunc(d, end) })
	}
	opened := outlive(byeTime)
	st, err := l.open(streamCtx, conn)
	if err != nil {
		return false, fmt.Errorf("connecting to %s: %w", l.address, err)
	}
	opened()
	defer outlive(l.agent.drainTimeout() + byeTime)()
	c := &conversation{
		link: l, stream: st, end: end,
		session: &session{changed: make(chan struct{}, 1)},
		in:      make(chan *pb.RouterMessage),
	}
	err = c.run(ctx)
	// The reader may be blocked on a message for c.in.
	end()
	c.discardMessages()
	return c.welcomed, err
}

// open opens a stream with the current token.
func (l *link) open(ctx context.Context, conn *grpc.ClientConn) (pb.AgentRegistry_ConnectClient, error) {
	if l.agent.cfg.Token != nil {
		token, err := l.agent.cfg.Token()
		if err != nil {
			return nil, err
		}
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, protocol.TokenKey, protocol.TokenScheme+" "+token)
		}
	}
	if l.former != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, protocol.RouterKey, l.former)
	}
	return pb.NewAgentRegistryClient(conn).Connect(ctx)
}

func (l *link) dial() (*grpc.ClientConn, error) {
	target := l.address
	creds, err := l.agent.cfg.TLS.credentials(l.host)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		// Without pings, a router whose machine is down looks like one with nothing to send.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: protocol.PingTime, Timeout: protocol.PingTime / 2}),
	}
	if _, _, err := net.SplitHostPort(target); err == nil {
		target = "passthrough:///" + target
	}
	if dial := l.agent.cfg.dial; dial != nil {
		target = "passthrough:///" + l.address
		options = append(options, grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
			return dial(address)
		}))
	}
	return grpc.NewClient(target, options...)
}
