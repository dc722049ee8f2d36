// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"crypto/sha256"
	"encoding/json/jsontext"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/holdgate/holdgate/sitemap"
)

// Fields is what the decision needs of a body. What lies deeper than the top
// level is the engine's business.
type Fields struct {
	Model               string
	Stream              bool
	MaxTokens           int64 // -1: not given
	MaxCompletionTokens int64 // -1: not given; max_output_tokens counts as it
}

// body is a request's body in the chunks that Envoy sent.
type body struct {
	chunks []mem.Buffer
	size   int64
	model  span               // where the model's value lies, once readFields has read it decoded
	came   *[sha256.Size]byte // the hash of the body as it came, once an alias has changed it
}

// sum is the hash of the body as it came.
func (b *body) sum() [sha256.Size]byte {
	if b.came != nil {
		return *b.came
	}
	h := sha256.New()
	for _, c := range b.chunks {
		h.Write(c.ReadOnlyData())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (b *body) add(chunk mem.Buffer) {
	if chunk.Len() == 0 {
		chunk.Free()
		return
	}
	b.chunks = append(b.chunks, chunk)
	b.size += int64(chunk.Len())
}

// free gives the buffers back.
func (b *body) free() {
	for _, c := range b.chunks {
		c.Free()
	}
	b.chunks = nil
}

// chunkSize is what Envoy sends at once, and what it takes well.
const chunkSize = 64 << 10

// settle copies the body to memory of its exact size, for a wait: pooled buffers
// are larger than what they carry. It returns the copy.
func (b *body) settle() []byte {
	all := make([]byte, 0, b.size)
	for _, c := range b.chunks {
		all = append(all, c.ReadOnlyData()...)
	}
	b.free()
	b.size = 0
	b.addAll(all)
	return all
}

// setModel replaces the value of the model, and nothing else, in a body that is sent
// on decoded. Its error is a *Refusal.
func (b *body) setModel(f *Fields, model string, kind sitemap.Kind, c coding, limit int64) error {
	r, done, err := decode(c, b.reader(), limit)
	if err != nil {
		return RequestInvalid("the request body does not match its content-encoding")
	}
	defer done()
	all, err := io.ReadAll(r)
	if err == nil {
		// The fields may have been read from a skimmed text.
		_, err = b.readFieldsOf(bytes.NewBuffer(all), kind, limit)
	}
	if err != nil {
		return RequestInvalid("the request body does not match its content-encoding")
	}
	quoted, err := jsontext.AppendQuote(nil, model)
	if err != nil {
		return RequestInvalid("the model has a name that cannot be sent on")
	}
	came := b.sum()
	b.came = &came
	b.free()
	b.size = 0
	b.addAll(slices.Concat(all[:b.model.from], quoted, all[b.model.to:]))
	f.Model = model
	return nil
}

// addAll adds bytes in chunks of the size that Envoy takes well.
func (b *body) addAll(all []byte) {
	for rest := all; len(rest) > 0; {
		n := min(len(rest), chunkSize)
		b.add(mem.SliceBuffer(rest[:n:n]))
		rest = rest[n:]
	}
}

// chunkReader reads a body and leaves its chunks as they are.
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

// fieldReader reads the fields of one body after the other.
type fieldReader struct {
	dec    jsontext.Decoder
	kind   sitemap.Kind
	fields Fields
	model  span
	seen   uint
}

var fieldReaders = sync.Pool{New: func() any { return &fieldReader{} }}

// keepDecoder is the largest body whose decoder, with its buffer, is used again.
const keepDecoder = 256 << 10

// skimFrom is the size of body from which on it pays to leave out long strings.
const skimFrom = 32 << 10

// readFields reads the decision's fields, of a body in coding c and of at most
// limit bytes. Every error is a *Refusal.
func (b *body) readFields(kind sitemap.Kind, c coding, limit int64) (Fields, error) {
	if c == identity && b.size >= skimFrom {
		f, err := b.readFieldsOf(&skimmer{chunks: b.chunks}, kind, limit)
		if err == nil && len(f.Model) < keptRun {
			return f, nil
		}
		// Only the whole text says where it is wrong, or what a long name is.
	}
	r, done, err := decode(c, b.reader(), limit)
	if err != nil {
		return Fields{}, RequestInvalid("the request body does not match its content-encoding")
	}
	defer done()
	return b.readFieldsOf(r, kind, limit)
}

// reader reads the body as it came. The decoder reads a bytes.Buffer where it lies.
func (b *body) reader() io.Reader {
	if len(b.chunks) == 1 {
		return bytes.NewBuffer(b.chunks[0].ReadOnlyData())
	}
	return &chunkReader{rest: b.chunks}
}

func (b *body) readFieldsOf(r io.Reader, kind sitemap.Kind, limit int64) (Fields, error) {
	fr := fieldReaders.Get().(*fieldReader)
	defer func() {
		_, skimmed := r.(*skimmer)
		if b.size <= keepDecoder || skimmed {
			fr.dec.Reset(nothing{}) // it keeps no body
			fieldReaders.Put(fr)
		}
	}()
	fr.kind, fr.seen = kind, 0
	fr.fields = Fields{MaxTokens: -1, MaxCompletionTokens: -1}
	// Only the top level is checked for repeated names, by member.
	fr.dec.Reset(r, jsontext.AllowDuplicateNames(true))
	err := fr.read(limit)
	b.model = fr.model
	return fr.fields, err
}

// nothing is an empty text.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }

func (fr *fieldReader) read(limit int64) error {
	err := fr.object()
	var refusal *Refusal
	var syntax *jsontext.SyntacticError
	switch {
	case err == nil, errors.As(err, &refusal):
		return err
	case errors.Is(err, errDecodedTooLarge):
		return TooLarge(limit)
	case errors.As(err, &syntax):
		return RequestInvalid("the request body is not valid JSON near byte %d", syntax.ByteOffset)
	case errors.Is(err, io.EOF):
		return RequestInvalid("the request body is empty")
	default:
		return RequestInvalid("the request body does not match its content-encoding")
	}
}

const (
	seenModel = 1 << iota
	seenStream
	seenMaxTokens
	seenMaxCompletionTokens
	seenMaxOutputTokens
)

func (fr *fieldReader) object() error {
	kind := fr.dec.PeekKind()
	if _, err := fr.dec.ReadToken(); err != nil {
		return err
	}
	if kind != '{' {
		return RequestInvalid("the request body must be a JSON object")
	}
	for fr.dec.PeekKind() != '}' {
		if err := fr.member(); err != nil {
			return err
		}
	}
	if _, err := fr.dec.ReadToken(); err != nil {
		return err
	}
	switch _, err := fr.dec.ReadToken(); {
	case err == nil:
		return RequestInvalid("the request body has data after its JSON object")
	case !errors.Is(err, io.EOF):
		return err
	case fr.seen&seenModel == 0:
		return RequestInvalid("the request body has no model")
	}
	return nil
}

// member reads one member of the top-level object.
func (fr *fieldReader) member() error {
	raw, err := fr.dec.ReadValue()
	if err != nil {
		return err
	}
	name := raw[1 : len(raw)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		if name, err = jsontext.AppendUnquote(nil, raw); err != nil {
			return err
		}
	}
	var bit uint
	var read func(*Fields, jsontext.Value) bool
	var label string
	switch string(name) {
	case "model":
		bit, read, label = seenModel, readModel, "model"
	case "stream":
		if fr.kind != sitemap.Chat {
			return fr.dec.SkipValue()
		}
		bit, read, label = seenStream, readStream, "stream"
	case "max_tokens":
		bit, read, label = seenMaxTokens, readMaxTokens, "max_tokens"
	case "max_completion_tokens":
		bit, read, label = seenMaxCompletionTokens, readMaxCompletionTokens, "max_completion_tokens"
	case "max_output_tokens":
		bit, read, label = seenMaxOutputTokens, readMaxCompletionTokens, "max_output_tokens"
	default:
		return fr.dec.SkipValue()
	}
	if fr.seen&bit != 0 {
		return RequestInvalid("the request body has more than one %s", label)
	}
	fr.seen |= bit
	value, err := fr.dec.ReadValue()
	if err != nil {
		return err
	}
	if bit == seenModel {
		end := int(fr.dec.InputOffset())
		fr.model = span{from: end - len(value), to: end}
	}
	if !read(&fr.fields, value) {
		return RequestInvalid("%s in the request body is empty or has the wrong type", label)
	}
	return nil
}

func readModel(f *Fields, v jsontext.Value) bool {
	if v.Kind() != '"' {
		return false
	}
	text, err := jsontext.AppendUnquote(nil, v)
	f.Model = string(text)
	return err == nil && f.Model != ""
}

func readStream(f *Fields, v jsontext.Value) bool {
	f.Stream = v.Kind() == 't'
	return v.Kind() == 't' || v.Kind() == 'f' || v.Kind() == 'n'
}

func readMaxTokens(f *Fields, v jsontext.Value) bool { return readCount(&f.MaxTokens, v) }

func readMaxCompletionTokens(f *Fields, v jsontext.Value) bool {
	return readCount(&f.MaxCompletionTokens, v)
}

func readCount(n *int64, v jsontext.Value) bool {
	if v.Kind() == 'n' {
		return true
	}
	value, err := strconv.ParseFloat(string(v), 64)
	if v.Kind() != '0' || err != nil || value < 0 {
		return false
	}
	*n = int64(min(value, 1<<53))
	return true
}
