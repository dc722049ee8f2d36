// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/holdgate/holdgate/envoy"
)

// head is what is read of the request headers. Its byte slices lie in the buffer
// of the headers message.
type head struct {
	block           headerBlock
	method, path    []byte
	requestID       []byte
	clientRequestID string
	contentLength   int64 // -1: not given
	coding          coding
	upgrade         bool
	keepaliveOff    bool
	failed          string   // in the rehold lane: the attempt that brought the request there
	wakeHeaders     []string // x-wake-* headers that are there: they never reach the engine
}

// own header names, and the prefixes that no engine sees.
const (
	wakePrefix      = "x-wake-"
	ownPrefix       = "x-holdgate-"
	headerRequestID = "x-request-id"
	headerClientID  = "x-client-request-id"
	headerKeepalive = "x-wake-keepalive"
	headerAuthority = ":authority"
)

func readHead(block headerBlock) head {
	h := head{block: block, contentLength: -1}
	for name, value := range block.all() {
		switch string(name) {
		case ":method":
			h.method = value
		case ":path":
			h.path = value
		case headerRequestID:
			h.requestID = value
		case headerClientID:
			h.clientRequestID = string(value)
		case "content-length":
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				h.contentLength = n
			}
		case "content-encoding":
			if c := codingOf(string(value)); h.coding == identity {
				h.coding = c
			} else if c != identity {
				h.coding = unknownCoding // one upon the other
			}
		case "upgrade":
			h.upgrade = true
		case envoy.FailedHeader:
			h.failed = string(value)
		case headerKeepalive:
			h.keepaliveOff = strings.EqualFold(string(value), "off")
			h.wakeHeaders = append(h.wakeHeaders, headerKeepalive)
		default:
			if bytes.HasPrefix(name, []byte(wakePrefix)) {
				h.wakeHeaders = append(h.wakeHeaders, string(name))
			}
		}
	}
	return h
}

// pathOnly is the path without its query.
func (h *head) pathOnly() []byte {
	path, _, _ := bytes.Cut(h.path, []byte("?"))
	return path
}

const modelsPath = "/v1/models"

// models is the model that a GET of the models API names, empty for the list.
func (h *head) models() (model string, ok bool) {
	path := string(h.pathOnly())
	if path == modelsPath {
		return "", true
	}
	model, ok = strings.CutPrefix(path, modelsPath+"/")
	// Some clients escape the slash in a name.
	if plain, err := url.PathUnescape(model); err == nil {
		model = plain
	}
	return model, ok
}

// refusal says what is wrong with the request before its body is read.
func (h *head) refusal(limit int64, end bool) *Refusal {
	switch {
	case string(h.method) != http.MethodPost, h.upgrade:
		return MethodNotAllowed(http.MethodPost)
	case h.coding == unknownCoding:
		return UnsupportedEncoding()
	case h.contentLength > limit:
		return TooLarge(limit)
	case end:
		return RequestInvalid("the request body is empty")
	}
	return nil
}
