// SPDX-License-Identifier: Apache-2.0

package body

import (
	"crypto/sha256"
	"encoding/json/jsontext"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/holdgate/holdgate/internal/refusal"
	"github.com/holdgate/holdgate/internal/target"
)

// Body is the body of a request, in the chunks that Envoy sent.
type Body struct {
	chunks []mem.Buffer
	size   int64
	model  span               // the model's value in the decoded body; set by ReadFields
	text   textMeter          // of the decoded body; set by ReadFields
	sum    *[sha256.Size]byte // the hash of the body as received; nil until SetModel changes it
}

// Sum returns the hash of the body as received.
func (b *Body) Sum() [sha256.Size]byte {
	if b.sum != nil {
		return *b.sum
	}
	h := sha256.New()
	for _, c := range b.chunks {
		h.Write(c.ReadOnlyData())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Add appends a chunk, which the body frees.
func (b *Body) Add(chunk mem.Buffer) {
	if chunk.Len() == 0 {
		chunk.Free()
		return
	}
	b.chunks = append(b.chunks, chunk)
	b.size += int64(chunk.Len())
}

// Size returns the size of the body in bytes. Next and Take do not change it.
func (b *Body) Size() int64 { return b.size }

// TextTokens estimates the number of tokens in the text of the body. It is 0 before
// ReadFields.
func (b *Body) TextTokens() int64 { return b.text.tokens() }

// Next removes and returns the first chunk, which the caller must free, and reports whether
// it was the last one. chunk is nil when none is left.
func (b *Body) Next() (chunk mem.Buffer, last bool) {
	if len(b.chunks) == 0 {
		return nil, false
	}
	chunk, b.chunks = b.chunks[0], b.chunks[1:]
	return chunk, len(b.chunks) == 0
}

// Take removes and returns all chunks, which the caller must free.
func (b *Body) Take() []mem.Buffer {
	chunks := b.chunks
	b.chunks = nil
	return chunks
}

// Free frees the chunks. A second call does nothing.
func (b *Body) Free() {
	for _, c := range b.chunks {
		c.Free()
	}
	b.chunks = nil
}

// chunkSize is the size of Envoy's chunks.
const chunkSize = 64 << 10

// Settle moves the body to memory of its exact size, because pooled buffers are larger than
// their contents. It returns the whole body.
func (b *Body) Settle() []byte {
	all := make([]byte, 0, b.size)
	for _, c := range b.chunks {
		all = append(all, c.ReadOnlyData()...)
	}
	b.Free()
	b.size = 0
	b.addAll(all)
	return all
}

// addAll adds bytes in chunks of Envoy's size.
func (b *Body) addAll(all []byte) {
	for rest := all; len(rest) > 0; {
		n := min(len(rest), chunkSize)
		b.Add(mem.SliceBuffer(rest[:n:n]))
		rest = rest[n:]
	}
}

type span struct{ from, to int }

// ReadFields reads the fields that the decision needs from a body in coding c, which is at
// most limit bytes decoded, and measures its text. Every error is a *refusal.Refusal.
func (b *Body) ReadFields(kind target.Kind, c Coding, limit int64) (Fields, error) {
	s := newScanner(kind)
	defer s.release()
	err := b.decoded(c, limit, s.scan)
	if err == nil {
		err = s.finish()
	}
	b.model, b.text = s.model, s.text
	return s.fields, err
}

// decodeBuffers has the buffers into which bodies are decoded.
var decodeBuffers = sync.Pool{New: func() any { return new([decodeSize]byte) }}

const decodeSize = 32 << 10

// decoded calls f for each piece of the decoded body, which may have at most limit bytes.
// Its error is f's or a *refusal.Refusal.
func (b *Body) decoded(c Coding, limit int64, f func(piece []byte) error) error {
	if c == Identity {
		for _, chunk := range b.chunks {
			if err := f(chunk.ReadOnlyData()); err != nil {
				return err
			}
		}
		return nil
	}
	r, err := decode(c, &chunkReader{rest: b.chunks}, limit)
	if err != nil {
		return wronglyEncoded()
	}
	buffer := decodeBuffers.Get().(*[decodeSize]byte)
	defer decodeBuffers.Put(buffer)
	for {
		n, err := r.Read(buffer[:])
		if fErr := f(buffer[:n]); fErr != nil {
			return fErr
		}
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, errDecodedTooLarge):
			return refusal.TooLarge(limit)
		case err != nil:
			return wronglyEncoded()
		}
	}
}

func wronglyEncoded() *refusal.Refusal {
	return refusal.RequestInvalid("the request body does not match its content-encoding")
}

// SetModel decodes the body and replaces the value of the model. Its error is a
// *refusal.Refusal.
func (b *Body) SetModel(f *Fields, model string, c Coding, limit int64) error {
	quoted, err := jsontext.AppendQuote(nil, model)
	if err != nil {
		return refusal.RequestInvalid("the model has a name that cannot be sent on")
	}
	sum := b.Sum()
	changed := Body{model: b.model, text: b.text, sum: &sum}
	if c == Identity {
		changed.chunks, b.chunks = b.chunks, nil
	} else if err := b.decoded(c, limit, changed.addCopy); err != nil {
		return err
	}
	b.Free()
	changed.replace(b.model, quoted)
	*b = changed
	f.Model = model
	return nil
}

// addCopy adds a copy of a piece. It returns nil.
func (b *Body) addCopy(piece []byte) error {
	b.Add(mem.SliceBuffer(append(make([]byte, 0, len(piece)), piece...)))
	return nil
}

// replace replaces a part of the body. Chunks outside of that part are not copied.
func (b *Body) replace(part span, with []byte) {
	old := b.chunks
	b.chunks, b.size = nil, 0
	var changed []byte
	from := 0
	for _, chunk := range old {
		data, to := chunk.ReadOnlyData(), from+chunk.Len()
		if to <= part.from || from >= part.to {
			b.Add(chunk)
			from = to
			continue
		}
		if from <= part.from {
			changed = slices.Concat(data[:part.from-from], with)
		}
		if to >= part.to {
			b.addAll(append(changed, data[part.to-from:]...))
		}
		chunk.Free()
		from = to
	}
}

// chunkReader reads chunks without freeing them.
type chunkReader struct {
	rest    []mem.Buffer
	current []byte
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.current) == 0 {
		if len(r.rest) == 0 {
			return 0, io.EOF
		}
		r.current, r.rest = r.rest[0].ReadOnlyData(), r.rest[1:]
	}
	n := copy(p, r.current)
	r.current = r.current[n:]
	return n, nil
}
