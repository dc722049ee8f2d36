// SPDX-License-Identifier: Apache-2.0

package site

import (
	"fmt"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/holdgate/holdgate/sitemap"
)

const (
	// packFrom is the size in bytes from which a text is compressed.
	packFrom = 16 << 10
	// maxUnpacked is the largest size of a text. The canonical form of a map may be longer than
	// what was pushed.
	maxUnpacked = 2 * sitemap.MaxBytes
	// zstdMagic begins what pack has compressed. No JSON begins with it.
	zstdMagic = "\x28\xb5\x2f\xfd"
)

// pack returns a JSON text, compressed if it is long: a server that answers all calls in turn
// should not spend its time on the transfer of one.
func pack(text []byte) (string, error) {
	if len(text) < packFrom {
		return string(text), nil
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return "", fmt.Errorf("compressing: %w", err)
	}
	defer func() { _ = w.Close() }()
	return string(w.EncodeAll(text, nil)), nil
}

// unpack returns the text that was packed.
func unpack(packed string) ([]byte, error) {
	if !strings.HasPrefix(packed, zstdMagic) {
		return []byte(packed), nil
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	defer r.Close()
	text, err := r.DecodeAll([]byte(packed), nil)
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	return text, nil
}
