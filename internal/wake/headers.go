// SPDX-License-Identifier: Apache-2.0

package wake

import (
	"cmp"
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
	"github.com/holdgate/holdgate/internal/settings"
)

// Headers are the secret headers of webhooks, by host.
type Headers struct{ byHost map[string]http.Header }

// HeadersFile holds the headers of a file and follows its changes.
type HeadersFile = reload.File[Headers]

// LoadHeaders reads the file of --webhook-headers-file.
func LoadHeaders(path string, o reload.Options) (*HeadersFile, error) {
	return reload.Load(path, func(data []byte, _ *Headers) (*Headers, error) { return ParseHeaders(data) }, o)
}

// headerRules keep values of the file out of messages. Messages that name a host or a header
// contain it themselves.
var headerRules = settings.Rules{Show: settings.Nothing}

// ParseHeaders parses a mapping of the form host: {name: value}. For a host with a port, the
// entry with this port is used instead of the entry without one. No error contains a value.
func ParseHeaders(data []byte) (*Headers, error) {
	h := &Headers{byHost: map[string]http.Header{}}
	err := headerRules.Parse(data, func(top settings.Value) {
		top.Mapping(func(host *yaml.Node, v settings.Value) {
			u, ok := parseHost(host.Value)
			if !ok {
				v.At(host).Add("%q is not a host, such as hooks.example.com or hooks.example.com:8443", host.Value)
				return
			}
			key := hostKey(u.Hostname(), u.Port())
			if h.byHost[key] != nil {
				v.At(host).Add("%s is given twice", host.Value)
				return
			}
			header := http.Header{}
			h.byHost[key] = header
			v.Mapping(func(name *yaml.Node, v settings.Value) { addHeader(header, name.Value, v) })
		})
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// reserved are the headers that a call sets itself, or that net/http sets.
var reserved = map[string]bool{
	"Connection": true, "Content-Length": true, "Content-Type": true, "Host": true,
	"Idempotency-Key": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

func addHeader(h http.Header, name string, v settings.Value) {
	if !httpguts.ValidHeaderFieldName(name) {
		v.Add("%q is not the name of a header", name)
		return
	}
	name = http.CanonicalHeaderKey(name)
	switch {
	case reserved[name]:
		v.Add("the header %s is not for this file to set", name)
	case h[name] != nil:
		v.Add("%s is given twice", name)
	case !settings.IsString(v.Node):
		v.Bad("the value of " + name + " " + settings.MustBeString)
	case v.Value == "" || !httpguts.ValidHeaderFieldValue(v.Value):
		v.Add("the value of %s must be one line that is not empty", name)
	default:
		h[name] = []string{v.Value}
	}
}

// addTo sets the secret headers for the host of u. h may be nil.
func (h *Headers) addTo(u *url.URL, to http.Header) {
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

// parseHost parses a host name or an IP address, with or without a port.
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
