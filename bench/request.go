// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	benchModel = "bench-model"
	benchPath  = "/v1/chat/completions"
	benchKey   = "bench-key" // only the policed system requires one
)

// chatBody returns a chat request of exactly size bytes, with the model first as the
// SDKs send it.
func chatBody(size int) ([]byte, error) {
	const before = `{"model":"` + benchModel + `","messages":[{"role":"user","content":"`
	const after = `"}]}`
	fill := size - len(before) - len(after)
	if fill < 1 {
		return nil, fmt.Errorf("a body of %d bytes is too small, %d is the least", size, len(before)+len(after)+1)
	}
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", fill/45+1)
	return []byte(before + text[:fill] + after), nil
}

// rawRequest returns the whole request as sent on the wire.
func rawRequest(body []byte) []byte {
	head := "POST " + benchPath + " HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nauthorization: Bearer " + benchKey + "\r\n" +
		"content-length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	return append([]byte(head), body...)
}

// backendAnswer returns the backend's answer to a body of size bytes. The number in it
// proves to the client that the whole body arrived.
func backendAnswer(size int64) []byte {
	return fmt.Appendf(nil, `{"id":"bench","object":"chat.completion","model":%q,"received_bytes":%d,"choices":[]}`, benchModel, size)
}

// parseSize parses a size such as 4096, 64KiB or 1MiB.
func parseSize(text string) (int, error) {
	unit, digits := 1, text
	for suffix, bytes := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20} {
		if rest, found := strings.CutSuffix(text, suffix); found {
			unit, digits = bytes, rest
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n <= 0 || n > (64<<20)/unit {
		return 0, fmt.Errorf("size %q: want bytes, KiB or MiB up to 64MiB", text)
	}
	return n * unit, nil
}

// sizeText formats a size as parseSize accepts it.
func sizeText(size int) string {
	switch {
	case size%(1<<20) == 0:
		return strconv.Itoa(size>>20) + " MiB"
	case size%(1<<10) == 0:
		return strconv.Itoa(size>>10) + " KiB"
	default:
		return strconv.Itoa(size) + " B"
	}
}
