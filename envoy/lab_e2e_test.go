// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package envoy

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
)

// answer tells the lab's ext_proc server what to do with a complete request: send it to
// a destination, or answer it with the given status.
type answer struct {
	first    string
	set      map[string]string // headers added to the request.
	metadata map[string]any    // further keys of the namespace holdgate.
	reroute  bool              // the route is chosen again, by the metadata.
	status   int
}

// asked describes one ext_proc stream once its headers have arrived.
type asked struct {
	at      time.Time
	lane    string
	headers map[string]string
}

// logged is one access-log entry.
type logged struct {
	at    time.Time
	entry *accesslogv3.HTTPAccessLogEntry
}

// lab is a real Envoy with a rendered bootstrap, and a small server in place of
// holdgate serve.
type lab struct {
	extprocv3.UnimplementedExternalProcessorServer
	alsv3.UnimplementedAccessLogServiceServer

	envoy  *Process
	dir    string
	grpc   *grpc.Server
	decide func(asked) answer

	asks chan asked
	logs map[string]chan logged // by the log's name.
}

// newLab starts both. decide is called once per stream, and may block.
func newLab(t testing.TB, concurrency int, decide func(asked) answer, backendCAs ...string) *lab {
	t.Helper()
	l := &lab{dir: lanesDir(t), decide: decide, asks: make(chan asked, 4096)}
	l.logs = map[string]chan logged{LogEdge: make(chan logged, 4096)}
	l.serve(t)
	var log lockedBuffer
	p, err := binary(t).Start(t.Context(), Options{
		Bootstrap:   rendered(t, Config{EdgeListen: "127.0.0.1:0", LanesDir: l.dir, BackendCAs: backendCAs}),
		Dir:         l.dir,
		Concurrency: concurrency,
		Log:         &log,
	})
	require.NoError(t, err)
	l.envoy = p
	t.Cleanup(func() {
		require.NoError(t, p.Stop(5*time.Second))
		if t.Failed() {
			t.Logf("Envoy's log:\n%s", log.String())
		}
	})
	return l
}

func (l *lab) serve(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(l.dir, ExtProcSocket))
	require.NoError(t, err)
	l.grpc = grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(l.grpc, l)
	alsv3.RegisterAccessLogServiceServer(l.grpc, l)
	go func() { _ = l.grpc.Serve(listener) }()
	t.Cleanup(l.grpc.Stop)
}

func (l *lab) url(path string) string { return "http://" + l.envoy.EdgeAddr() + path }

// Process answers one request.
func (l *lab) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	a := asked{at: time.Now(), headers: map[string]string{}}
	if md, ok := metadata.FromIncomingContext(stream.Context()); ok {
		a.lane = md.Get(LaneMetadata)[0]
	}
	for _, h := range first.GetRequestHeaders().GetHeaders().GetHeaders() {
		a.headers[h.GetKey()] = string(h.GetRawValue())
	}
	l.asks <- a
	var body [][]byte
	if !first.GetRequestHeaders().GetEndOfStream() {
		if body, err = readBody(stream); err != nil {
			return err
		}
	}
	do := l.decide(a)
	if do.status != 0 {
		return stream.Send(immediate(do))
	}
	if err := stream.Send(native(do, body)); err != nil {
		return err
	}
	for i, chunk := range body {
		if err := stream.Send(chunkOf(chunk, i == len(body)-1)); err != nil {
			return err
		}
	}
	return nil
}

func readBody(stream extprocv3.ExternalProcessor_ProcessServer) ([][]byte, error) {
	var body [][]byte
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		body = append(body, m.GetRequestBody().GetBody())
		if m.GetRequestBody().GetEndOfStream() {
			return body, nil
		}
	}
}

func native(do answer, body [][]byte) *extprocv3.ProcessingResponse {
	fields := map[string]any{FirstKey: do.first, ModeKey: ModeNative}
	if body != nil {
		fields[ContentLengthKey] = strconv.Itoa(len(bytes.Join(body, nil)))
	}
	maps.Copy(fields, do.metadata)
	mutation := &extprocv3.HeaderMutation{}
	for k, v := range do.set {
		mutation.SetHeaders = append(mutation.SetHeaders, &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: k, RawValue: []byte(v)}, AppendAction: overwriteOrAdd,
		})
	}
	return &extprocv3.ProcessingResponse{
		DynamicMetadata: inNamespace(fields),
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutation, ClearRouteCache: do.reroute},
		}},
	}
}

func chunkOf(chunk []byte, last bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
		Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: chunk, EndOfStream: last}},
		}},
	}}}
}

func immediate(do answer) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		DynamicMetadata: inNamespace(map[string]any{ModeKey: ModeLocal}),
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode(do.status)},
			Body:   []byte(`{"own":true}`),
		}},
	}
}

func inNamespace(fields map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(map[string]any{Namespace: fields})
	if err != nil {
		panic(err)
	}
	return s
}

// StreamAccessLogs receives the records of the access logs.
func (l *lab) StreamAccessLogs(stream alsv3.AccessLogService_StreamAccessLogsServer) error {
	var name string
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if id := m.GetIdentifier(); id != nil {
			name = id.GetLogName()
		}
		for _, entry := range m.GetHttpLogs().GetLogEntry() {
			l.logs[name] <- logged{at: time.Now(), entry: entry}
		}
	}
}

// nextLog waits for the next record of the log.
func (l *lab) nextLog(t testing.TB, name string) logged {
	t.Helper()
	select {
	case e := <-l.logs[name]:
		return e
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no record came", name)
		return logged{}
	}
}

// nextAsk waits for the next ext_proc stream.
func (l *lab) nextAsk(t testing.TB) asked {
	t.Helper()
	select {
	case a := <-l.asks:
		return a
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no ext_proc stream came")
		return asked{}
	}
}

// lockedBuffer may be read while Envoy writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
