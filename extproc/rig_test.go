// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/extproc/extproctest"
	"github.com/holdgate/holdgate/holdstate"
	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

var chatOfM = target.Target{Model: "m", Kind: target.Chat}

const (
	interval = 15 * time.Second
	budget   = 5 * time.Minute
	maxBody  = 1 << 20
	maxTotal = 4 << 20
	maxHeld  = 8 << 20
	chatPath = "/v1/chat/completions"
)

// rig is a server behind a real gRPC connection, with a real hold machine, fake
// replicas and a fake engine behind the relay lane. It lives in a bubble.
type rig struct {
	*Server
	t       *testing.T // of the bubble
	machine *holdstate.Machine
	slots   *fakeSlots
	engine  *fakeEngine
	grpc    *grpc.Server
	conn    *grpc.ClientConn
	log     *bytes.Buffer
	overTCP atomic.Bool // new connections do not look as if they came over a unix socket

	mu           sync.Mutex
	outcomes     map[holdstate.Outcome]int
	records      []*Record
	routed       int
	freed        atomic.Int32                                   // corrections
	crash        bool                                           // in Routed
	decide       func(*Request) Decision                        // nil: the usual policy
	authenticate func(Credentials) (fakeCall, *refusal.Refusal) // nil: everybody is the default tenant
	notReady     string
	revoked      *refusal.Refusal

	engineKey [2]string         // header and value
	engines   map[string]Engine // by address
}

// bubble runs f with a rig in a bubble. When it ends everything must be at rest,
// and no goroutine may be left.
func bubble(t *testing.T, f func(r *rig), changes ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := Options{
			Keepalive: interval, RequestTimeout: time.Minute, AdmitPark: 250 * time.Millisecond, MaxRequestBytes: maxBody, MaxBodyBytesTotal: maxTotal,
			RelayMaxBytes: 1 << 20, LateError: LateErrorBody,
		}
		for _, change := range changes {
			change(&o)
		}
		r := newRig(t, o)
		defer r.stop()
		f(r)
		synctest.Wait()
		r.requireAtRest(t)
	})
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	r := &rig{t: t, slots: &fakeSlots{}, engine: &fakeEngine{}, log: &bytes.Buffer{}, outcomes: map[holdstate.Outcome]int{}}
	r.machine = holdstate.New(holdstate.Options{
		Limits: holdstate.Limits{PerModel: 5000, PerKey: 5000, Total: 5000, Bytes: maxHeld, QueueDepth: 100},
		Slots:  r.slots,
		OnOutcome: func(out holdstate.Outcome, _ time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.outcomes[out]++
		},
	})
	r.slots.machine = r.machine
	r.Server = New(o, Deps{NotReady: func() string { return r.notReady }, Decider: r, Observer: r, Wakes: r.machine, Relay: r.engine, Log: zerolog.New(r.log)})
	r.grpc = grpc.NewServer(ServerOptions()...)
	r.Register(r.grpc)
	listener := bufconn.Listen(1 << 20)
	go func() { _ = r.grpc.Serve(fromNetwork{listener, &r.overTCP}) }()
	conn, err := grpc.NewClient("passthrough:///rig", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	r.conn = conn
	return r
}

// fromNetwork gives connections the address of a peer on a unix socket, or on TCP.
type fromNetwork struct {
	net.Listener

	tcp *atomic.Bool
}

func (l fromNetwork) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.tcp.Load() {
		return peerConn{c, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 4000}}, nil
	}
	return peerConn{c, &net.UnixAddr{Net: "unix", Name: "pid 9"}}, nil
}

type peerConn struct {
	net.Conn

	addr net.Addr
}

func (c peerConn) RemoteAddr() net.Addr { return c.addr }

func (r *rig) stop() {
	_ = r.conn.Close()
	r.grpc.Stop()
}

func (r *rig) requireAtRest(t *testing.T) {
	t.Helper()
	require.Zero(t, r.InFlight(), "in flight")
	require.Zero(t, r.holds.Load(), "holds")
	require.True(t, r.noBodies(), "body bytes are taken")
	require.Zero(t, r.slots.taken(), "slots are taken")
	require.Zero(t, r.machine.Demand(chatOfM.Model), "demand")
	require.False(t, r.machine.Waiting(chatOfM), "waiting")
	w, err := r.machine.Hold(holdstate.Request{Target: target.Target{Model: "other"}, Bytes: maxHeld})
	require.NotErrorIs(t, err, holdstate.ErrFull, "bytes are held")
	if err == nil {
		w.Tell(holdstate.Leave)
	}
}

// noBodies says whether no body takes any memory.
func (r *rig) noBodies() bool {
	const small, large = maxTotal / 4, maxTotal - maxTotal/4
	if !r.bodies.small.TryAcquire(small) {
		return false
	}
	defer r.bodies.small.Release(small)
	if !r.bodies.large.TryAcquire(large) {
		return false
	}
	r.bodies.large.Release(large)
	return true
}

func (r *rig) outcome(o holdstate.Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcomes[o]
}

func (r *rig) routedNow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.routed
}

// Decide is the usual policy with one model that may be held.
func (r *rig) Decide(q *Request) Decision {
	if r.decide != nil {
		return r.decide(q)
	}
	t := q.Target()
	waiting := holdstate.Request{Target: t, ClientIDs: q.ClientIDs, Bytes: q.BodySize, Seq: q.Seq, Claim: r.slots}
	if r.slots.Serving(t) {
		if g, took := r.slots.Take(nil); took == holdstate.Taken && !r.slots.shut() {
			return Decision{Grant: g}
		} else if took == holdstate.Taken {
			g.Release()
		}
		w, err := r.machine.Queue(waiting)
		if err != nil {
			return r.refuse(q, err)
		}
		return Decision{Waiter: w}
	}
	if q.Model != chatOfM.Model {
		return Decision{Refusal: refusal.ModelNotFound(q.Model)}
	}
	w, err := r.machine.Hold(waiting)
	if err != nil {
		return r.refuse(q, err)
	}
	return Decision{Waiter: w, Held: true, Budget: budget}
}

// refuse refuses a request that cannot wait.
func (r *rig) refuse(q *Request, why error) Decision {
	return Decision{Refusal: refusal.For(why, refusal.Wait{Model: q.Model, Wakes: r.machine})}
}

func (r *rig) Authenticate(c Credentials) (Call, *refusal.Refusal) {
	call, why := fakeCall{caller: Caller{TenantID: "default"}}, (*refusal.Refusal)(nil)
	if r.authenticate != nil {
		call, why = r.authenticate(c)
	}
	if why != nil {
		return nil, why
	}
	call.rig = r
	return call, nil
}

func (r *rig) Resume() Call { return fakeCall{rig: r} }

// fakeCall is the Call of a request that the rig decides.
type fakeCall struct {
	*rig

	caller Caller
	strip  bool
}

func (c fakeCall) Caller() Caller { return c.caller }

func (c fakeCall) Forward() Forward { return Forward{StripKeys: c.strip} }

func (fakeCall) CheckBody(*Request) *refusal.Refusal { return nil }

func (r *rig) Recheck() *refusal.Refusal { return r.revoked }

func (r *rig) Resolve(name string) string {
	if name == "alias" {
		return chatOfM.Model
	}
	return name
}

func (r *rig) Ended(rec *Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, rec)
}

func (r *rig) Freed(holdstate.Grant, int) { r.freed.Add(1) }

func (r *rig) Engine(_ string, g holdstate.Grant) Engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, special := r.engines[g.Replica().Address]; special {
		return e
	}
	return Engine{KeyHeader: r.engineKey[0], Key: r.engineKey[1]}
}

func (r *rig) Models(model string) []byte {
	switch model {
	case "":
		return []byte(`{"object":"list"}`)
	case chatOfM.Model, "org/name":
		return []byte(`{"id":"` + model + `"}`)
	}
	return nil
}

func (r *rig) Routed(*Request, holdstate.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routed++
	if r.crash {
		crash(1)
	}
}

// crash is a programming error.
func crash(at int) int { return []int{}[at] }

// fakeSlots is a registry of replicas with slots for chatOfM, and the claim of its requests.
type fakeSlots struct {
	machine *holdstate.Machine

	mu       sync.Mutex
	replicas []*replica
	out      int
	failed   []string
	cameBack []string // replicas that sent a request back to the router
	closed   bool     // the gate
	never    error    // what the gate says to everybody
	before   func()   // called once, before the next answer to Serving
	pause    bool     // Take says Later
}

type replica struct {
	address string
	free    int
}

type fakeGrant struct {
	slots    *fakeSlots
	replica  *replica
	released bool
}

func (s *fakeSlots) Serving(t target.Target) bool {
	s.mu.Lock()
	before := s.before
	s.before = nil
	s.mu.Unlock()
	if before != nil {
		before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return t == chatOfM && len(s.replicas) > 0
}

// Admit lets everybody in unless the gate is shut.
func (s *fakeSlots) Admit(bool) (holdstate.Reservation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.never != nil {
		return nil, s.never
	}
	return fakeRoom{}, nil
}

type fakeRoom struct{}

func (fakeRoom) Release() {}

func (s *fakeSlots) shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// shutGate makes the gate let nobody in, for ever with an error.
func (s *fakeSlots) shutGate(shut bool, never error) {
	s.mu.Lock()
	s.closed, s.never = shut, never
	s.mu.Unlock()
	s.machine.UpdateAll()
}

// pauseFor has every request wait, as after the death of a replica under it.
func (s *fakeSlots) pauseFor(d time.Duration) {
	s.mu.Lock()
	s.pause = true
	s.mu.Unlock()
	time.AfterFunc(d, func() {
		s.mu.Lock()
		s.pause = false
		s.mu.Unlock()
		s.machine.Update(chatOfM)
	})
}

func (*fakeSlots) Next() bool { return false }

func (s *fakeSlots) Take(holdstate.Reservation) (holdstate.Grant, holdstate.TakeResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause {
		return nil, holdstate.Later
	}
	for _, rep := range s.replicas {
		if rep.free > 0 {
			rep.free--
			s.out++
			return &fakeGrant{slots: s, replica: rep}, holdstate.Taken
		}
	}
	return nil, holdstate.Full
}

// up registers a replica.
func (s *fakeSlots) up(address string, free int) {
	s.mu.Lock()
	s.replicas = append(s.replicas, &replica{address: address, free: free})
	s.mu.Unlock()
	s.machine.Update(chatOfM)
}

// down takes a replica out of routing.
func (s *fakeSlots) down(address string) {
	s.mu.Lock()
	s.replicas = slices.DeleteFunc(s.replicas, func(r *replica) bool { return r.address == address })
	s.mu.Unlock()
	s.machine.Update(chatOfM)
}

func (s *fakeSlots) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out
}

func (s *fakeSlots) failures() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.failed)
}

func (g *fakeGrant) Replica() holdstate.Replica { return holdstate.Replica{Address: g.replica.address} }

func (g *fakeGrant) CameBack() {
	g.slots.mu.Lock()
	defer g.slots.mu.Unlock()
	g.slots.cameBack = append(g.slots.cameBack, g.replica.address)
}

func (g *fakeGrant) Failed(reason string, _ bool) {
	g.slots.mu.Lock()
	g.slots.failed = append(g.slots.failed, g.replica.address+" "+reason)
	g.slots.mu.Unlock()
	g.slots.down(g.replica.address)
}

func (g *fakeGrant) Release() {
	g.slots.mu.Lock()
	was := g.released
	if !was {
		g.released = true
		g.slots.out--
		g.replica.free++
	}
	g.slots.mu.Unlock()
	if !was {
		g.slots.machine.Update(chatOfM)
	}
}

// fakeEngine is what stands behind the relay lane: each call waits for its script.
type fakeEngine struct {
	mu     sync.Mutex
	calls  []*call
	script func(*call) // nil: the test answers
}

// call is one relayed request.
type call struct {
	*http.Request
	body     []byte
	answer   chan result
	canceled chan struct{}
}

func (e *fakeEngine) RoundTrip(req *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(req.Body)
	c := &call{Request: req, body: body, answer: make(chan result, 1), canceled: make(chan struct{})}
	e.mu.Lock()
	e.calls = append(e.calls, c)
	script := e.script
	e.mu.Unlock()
	if script != nil {
		script(c)
	}
	select {
	case a := <-c.answer:
		return a.resp, a.err
	case <-req.Context().Done():
		close(c.canceled)
		return nil, req.Context().Err()
	}
}

// call waits until the engine has been called n times, and gives the last call.
func (e *fakeEngine) call(t *testing.T, n int) *call {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	require.Len(t, e.calls, n, "calls of the engine")
	return e.calls[n-1]
}

// respond sends the head; the writer is the engine's end of the body.
func (c *call) respond(status int, kv ...string) *io.PipeWriter {
	r, w := io.Pipe()
	header := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		header.Add(kv[i], kv[i+1])
	}
	stop := context.AfterFunc(c.Context(), func() { _ = w.CloseWithError(c.Context().Err()) })
	length := int64(-1)
	if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	c.answer <- result{resp: &http.Response{StatusCode: status, Header: header, ContentLength: length, Body: closingBody{PipeReader: r, stop: stop}}}
	return w
}

// fail ends the call as Envoy's lane does for an engine that gave no answer.
func (c *call) fail(flags string) { c.refuse(http.StatusServiceUnavailable, flags) }

// refuse ends the call with an answer of the lane itself.
func (c *call) refuse(status int, flags string) {
	c.answer <- result{resp: &http.Response{
		StatusCode: status, Header: http.Header{"X-Holdgate-Flags": {flags}},
		Body: io.NopCloser(strings.NewReader("the lane's own text")),
	}}
}

type closingBody struct {
	*io.PipeReader
	stop func() bool
}

func (b closingBody) Close() error {
	b.stop()
	return b.PipeReader.Close()
}

// exchange is one ext_proc stream from Envoy's side.
type exchange struct {
	stream extprocv3.ExternalProcessor_ProcessClient
	reset  context.CancelFunc
	begin  time.Time
	done   chan struct{}

	mu     sync.Mutex
	events []string
	got    []*extprocv3.ProcessingResponse
	err    error // how the server ended the stream
}

// open begins a stream; lane is empty for somebody else's Envoy.
func (r *rig) open(t *testing.T, lane string) *exchange {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if lane != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, envoy.LaneMetadata, lane)
	}
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	require.NoError(t, err)
	x := &exchange{stream: stream, reset: cancel, begin: time.Now(), done: make(chan struct{})}
	go x.receive()
	return x
}

// mute is a stream of an Envoy that does not read.
func (r *rig) mute(t *testing.T) *exchange {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), envoy.LaneMetadata, envoy.LaneEdge))
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	require.NoError(t, err)
	return &exchange{stream: stream, reset: cancel}
}

func (x *exchange) receive() {
	defer close(x.done)
	defer x.reset()
	for {
		m, err := x.stream.Recv()
		x.mu.Lock()
		if err != nil {
			x.err = err
			x.mu.Unlock()
			return
		}
		x.got = append(x.got, m)
		x.events = append(x.events, fmt.Sprintf("%v %s", time.Since(x.begin), describe(m)))
		x.mu.Unlock()
	}
}

func (x *exchange) send(ms ...*extprocv3.ProcessingRequest) {
	for _, m := range ms {
		_ = x.stream.Send(m) // an error is what Recv gives too
	}
}

// all is everything that came, with its time.
func (x *exchange) all() []string {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.events)
}

// end waits for the end that the server makes.
func (x *exchange) end() error {
	select {
	case <-x.done:
	case <-time.After(48 * time.Hour):
		return errors.New("the stream has no end")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// requireEnded demands these events and a proper end.
func (x *exchange) requireEnded(t *testing.T, want ...string) {
	t.Helper()
	require.ErrorIs(t, x.end(), io.EOF)
	require.Equal(t, want, x.all())
}

func (x *exchange) messages() []*extprocv3.ProcessingResponse {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.got)
}

// describe says in a few words what m is.
func describe(m *extprocv3.ProcessingResponse) string {
	mode := m.GetDynamicMetadata().GetFields()[envoy.Namespace].GetStructValue().GetFields()
	text := ""
	switch a := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		if len(mode) == 0 {
			return "untouched"
		}
		text = "serve on " + mode["first"].GetStringValue() + ", " + mode["content_length"].GetStringValue() + " bytes"
		if mode["mode"].GetStringValue() != "native" {
			text += ", but not native"
		}
		if a.RequestHeaders.GetResponse().GetStatus() == extprocv3.CommonResponse_CONTINUE_AND_REPLACE {
			text += ", whole"
		}
		return text
	case *extprocv3.ProcessingResponse_RequestBody:
		b := a.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		return fmt.Sprintf("body %d%s", len(b.GetBody()), ending(b.GetEndOfStream()))
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return "trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return "answer's head"
	case *extprocv3.ProcessingResponse_ResponseBody:
		if b := a.ResponseBody.GetResponse().GetBodyMutation().GetStreamedResponse(); b != nil {
			return fmt.Sprintf("answer %q%s", b.GetBody(), ending(b.GetEndOfStream()))
		}
		return "answer goes on"
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return "answer's trailers"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		text = fmt.Sprintf("%d %s", a.ImmediateResponse.GetStatus().GetCode(), a.ImmediateResponse.GetBody())
	case *extprocv3.ProcessingResponse_StreamedImmediateResponse:
		if b := a.StreamedImmediateResponse.GetBodyResponse(); b != nil {
			return fmt.Sprintf("%q%s", b.GetBody(), ending(b.GetEndOfStream()))
		}
		for _, h := range a.StreamedImmediateResponse.GetHeadersResponse().GetHeaders().GetHeaders() {
			if h.GetKey() == ":status" {
				text = "head " + string(h.GetRawValue())
			}
		}
	default:
		return fmt.Sprintf("%v", m)
	}
	if mode["mode"].GetStringValue() != "local" {
		text += ", but not local"
	}
	return text
}

func ending(end bool) string {
	if end {
		return " end"
	}
	return ""
}

// chat is a whole chat request.
func chat(stream bool) []*extprocv3.ProcessingRequest {
	return request(chatPath, fmt.Sprintf(`{"model":"m","stream":%t}`, stream))
}

func request(path, body string, headers ...string) []*extprocv3.ProcessingRequest {
	kv := append([]string{":method", "POST", ":path", path, ":authority", "api.example.com"}, headers...)
	return []*extprocv3.ProcessingRequest{extproctest.RequestHeaders(false, kv...), extproctest.RequestBody(body, true)}
}

// ask opens a stream on the edge and sends a whole request.
func (r *rig) ask(t *testing.T, ms []*extprocv3.ProcessingRequest) *exchange {
	t.Helper()
	x := r.open(t, envoy.LaneEdge)
	x.send(ms...)
	synctest.Wait()
	return x
}

// elapse lets d go by, with everything that it causes.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// logStream is one of Envoy's access-log streams.
func (r *rig) logStream(t *testing.T, name string) (record func(id, mode string), end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: name}}))
	synctest.Wait()
	record = func(id, mode string) {
		require.NoError(t, stream.Send(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
			HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: []*dataaccesslogv3.HTTPAccessLogEntry{{
				Request:          &dataaccesslogv3.HTTPRequestProperties{RequestId: id},
				CommonProperties: &dataaccesslogv3.AccessLogCommon{Metadata: extproctest.ModeMetadata(mode)},
			}}},
		}}))
		synctest.Wait()
	}
	return record, func() {
		cancel()
		synctest.Wait()
	}
}

// leavings are the ways in which a client's leaving reaches the server.
var leavings = map[string]func(*exchange){
	"half-close": func(x *exchange) { _ = x.stream.CloseSend() },
	"reset":      func(x *exchange) { x.reset() },
}
