// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"encoding/binary"
	"sync/atomic"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"

	"github.com/holdgate/holdgate/extproc/wire"
)

// Tap reads along with gRPC on one of Envoy's connections. Once the log streams move to another
// process, it handles every log message on the connection, also those that Envoy had sent before
// it knew of the end of its stream, which gRPC drops. An entry that both have is handled once,
// since the first ends the request. Connections without log streams are not read along any more
// after their first message.
type Tap struct {
	s   *Server
	off bool        // the connection has no log streams
	log atomic.Bool // it has one

	preface int    // bytes of the client preface that have not come
	head    []byte // of the current frame, until it is complete
	left    int    // bytes of its payload that have not come
	stream  *tapStream
	streams map[uint32]*tapStream
}

// tapStream is the messages of one stream.
type tapStream struct {
	name   string // of the log, from the first message
	prefix []byte // of the current message, until it is complete
	left   int    // bytes of the message that have not come
	keep   bool   // the message is needed
	data   []byte // of such a message
}

const (
	frameHead     = 9
	messagePrefix = 5
	// tapMost is the largest first message that is read along.
	tapMost = 4 << 20
)

// NewTap returns a Tap for a connection of Envoy.
func (s *Server) NewTap() *Tap {
	return &Tap{s: s, preface: len(http2.ClientPreface), streams: map[uint32]*tapStream{}}
}

// Drains reports whether the connection should be read until Envoy closes it, because it may
// have log messages yet.
func (t *Tap) Drains() bool { return t.log.Load() && t.s.moves() }

// Read reads what was read from the connection.
func (t *Tap) Read(p []byte) {
	n := min(t.preface, len(p))
	t.preface -= n
	for p = p[n:]; len(p) > 0 && !t.off; {
		if t.left > 0 {
			n := min(t.left, len(p))
			t.left -= n
			if t.stream != nil {
				t.message(p[:n])
			}
			p = p[n:]
			continue
		}
		n := min(frameHead-len(t.head), len(p))
		t.head = append(t.head, p[:n]...)
		p = p[n:]
		if len(t.head) == frameHead {
			t.frame()
		}
	}
	if t.off {
		t.head, t.stream, t.streams = nil, nil, nil
	}
}

// frame begins the frame of a complete head.
func (t *Tap) frame() {
	head := t.head
	t.head = t.head[:0]
	t.left = int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	kind, flags, id := http2.FrameType(head[3]), http2.Flags(head[4]), binary.BigEndian.Uint32(head[5:])
	t.stream = nil
	switch {
	case kind == http2.FrameRSTStream:
		delete(t.streams, id)
	case kind != http2.FrameData:
	case flags.Has(http2.FlagDataPadded):
		t.off = true // Envoy does not pad
	default:
		if t.stream = t.streams[id]; t.stream == nil {
			t.stream = &tapStream{}
			t.streams[id] = t.stream
		}
	}
}

// message adds a part of the current stream's messages.
func (t *Tap) message(p []byte) {
	s := t.stream
	for len(p) > 0 && !t.off {
		if s.left == 0 {
			n := min(messagePrefix-len(s.prefix), len(p))
			s.prefix = append(s.prefix, p[:n]...)
			p = p[n:]
			if len(s.prefix) < messagePrefix {
				return
			}
			s.left = int(binary.BigEndian.Uint32(s.prefix[1:]))
			t.off = s.prefix[0] != 0 || s.left > tapMost // Envoy does not compress
			s.prefix = s.prefix[:0]
			s.keep, s.data = s.name == "" || t.s.moves(), s.data[:0]
		}
		n := min(s.left, len(p))
		if s.keep {
			s.data = append(s.data, p[:n]...)
		}
		s.left -= n
		p = p[n:]
		if s.left == 0 && s.keep {
			t.complete(s)
		}
	}
}

// complete handles a complete message.
func (t *Tap) complete(s *tapStream) {
	var m wire.LogMessage
	if wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(s.data)}, &m) != nil || s.name == "" && m.Name == "" {
		t.off = true
		return
	}
	if s.name == "" {
		s.name = m.Name
		t.log.Store(true)
	}
	if t.s.moves() {
		t.s.onLogMessage(s.name, &m)
	}
}
