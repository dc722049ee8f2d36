// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/strictyaml"
)

// Headers are secret headers of webhooks, by host.
type Headers struct{ byHost map[string]http.Header }

// HeadersFile is the file of secret headers. Its value follows the file.
type HeadersFile = reload.File[Headers]

// LoadHeaders reads the file of --webhook-headers-file.
func LoadHeaders(path string, o reload.Options) (*HeadersFile, error) {
	return reload.Load(path, func(data []byte, _ *Headers) (*Headers, error) { return ParseHeaders(data) }, o)
}

// ParseHeaders reads host: {name: value}. A host with a port is for that port, and
// there it stands in for the host alone. No error has a value in it.
func ParseHeaders(data []byte) (*Headers, error) {
	top, err := strictyaml.Rules{Show: strictyaml.Nothing}.Document(data)
	if err != nil {
		return nil, err
	}
	h := &Headers{byHost: map[string]http.Header{}}
	err = entries("", top, func(host string, n *yaml.Node) error {
		u, ok := parseHost(host)
		if !ok {
			return fmt.Errorf("line %d: %q is not a host, such as hooks.example.com or hooks.example.com:8443", n.Line, host)
		}
		key := hostKey(u.Hostname(), u.Port())
		if h.byHost[key] != nil {
			return fmt.Errorf("line %d: %s is there twice", n.Line, host)
		}
		h.byHost[key] = http.Header{}
		return entries(host, n, func(name string, n *yaml.Node) error { return addHeader(h.byHost[key], name, n) })
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// ours are headers that the call itself sets, or that HTTP sets for it.
var ours = map[string]bool{
	"Connection": true, "Content-Length": true, "Content-Type": true, "Host": true,
	"Idempotency-Key": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

func addHeader(h http.Header, name string, n *yaml.Node) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return fmt.Errorf("line %d: %q is not the name of a header", n.Line, name)
	}
	name = http.CanonicalHeaderKey(name)
	switch {
	case ours[name]:
		return fmt.Errorf("line %d: the header %s is not for this file to set", n.Line, name)
	case h[name] != nil:
		return fmt.Errorf("line %d: %s is there twice", n.Line, name)
	case !strictyaml.IsString(n):
		return fmt.Errorf("line %d: the value of %s %s", n.Line, name, strictyaml.MustBeString)
	case n.Value == "" || !httpguts.ValidHeaderFieldValue(n.Value):
		return fmt.Errorf("line %d: the value of %s must be one line that is not empty", n.Line, name)
	}
	h[name] = []string{n.Value}
	return nil
}

// put sets the headers for the host of a call.
func (h *Headers) put(u *url.URL, to http.Header) {
	if h == nil {
		return
	}
	secret, ok := h.byHost[hostKey(u.Hostname(), cmp.Or(u.Port(), defaultPorts[u.Scheme]))]
	if !ok {
		secret = h.byHost[hostKey(u.Hostname(), "")]
	}
	maps.Copy(to, secret)
}

var defaultPorts = map[string]string{"http": "80", "https": "443"}

func hostKey(name, port string) string { return strings.ToLower(name) + ":" + port }

// parseHost takes a name or an address, with or without a port.
func parseHost(s string) (*url.URL, bool) {
	u, err := url.Parse("//" + s)
	if err != nil || u.Host != s || strings.HasSuffix(s, ":") {
		return nil, false
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, false
		}
	}
	if strings.HasPrefix(s, "[") {
		_, err := netip.ParseAddr(u.Hostname())
		return u, err == nil
	}
	return u, hostName.MatchString(u.Hostname())
}

var hostName = regexp.MustCompile(`^[0-9A-Za-z._-]+$`)

// entries calls f for each entry of a mapping.
func entries(what string, n *yaml.Node, f func(key string, value *yaml.Node) error) error {
	if !strictyaml.IsMapping(n) {
		return fmt.Errorf("line %d: %s must be a mapping", n.Line, cmp.Or(what, "the file"))
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !strictyaml.IsString(key) {
			return fmt.Errorf("line %d: each key %s", key.Line, strictyaml.MustBeString)
		}
		if err := f(key.Value, value); err != nil {
			return err
		}
	}
	return nil
}
