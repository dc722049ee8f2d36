// SPDX-License-Identifier: Apache-2.0

package enginekey

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/holdgate/holdgate/internal/reload"
	"github.com/holdgate/holdgate/internal/settings"
)

// maxKey is the longest key in bytes.
const maxKey = 4096

// The headers that may contain a key.
const (
	bearerHeader = "authorization"
	apiKeyHeader = "x-api-key"
)

var rules = settings.Rules{Show: settings.Little, Brackets: true}

// Parse checks the contents of the file of keys at path, and reads the files with the keys.
func Parse(path string, data []byte) (*Keys, error) { return parser(path)(data) }

// parser returns a function that parses the contents of the file of keys at path. Its error
// lists all problems.
func parser(path string) func(data []byte) (*Keys, error) {
	dir := filepath.Dir(path)
	return func(data []byte) (*Keys, error) {
		keys := &Keys{models: map[string]entry{}}
		err := rules.Parse(data, func(top settings.Value) {
			top.Fields(map[string]func(settings.Value){
				"models": func(v settings.Value) {
					v.Mapping(func(name *yaml.Node, v settings.Value) {
						v.At(name).CheckName(name.Value)
						keys.models[name.Value] = readEntry(v, dir)
					})
				},
			}, "models")
		})
		if err != nil {
			return nil, err
		}
		return keys, nil
	}
}

func readEntry(v settings.Value, dir string) entry {
	e := entry{header: bearerHeader}
	key := ""
	v.Fields(map[string]func(settings.Value){
		"api_key_file": func(v settings.Value) { e.path, key = readKey(v, dir) },
		"header":       func(v settings.Value) { e.header = readHeader(v) },
	}, "api_key_file")
	e.value = key
	if e.header == bearerHeader {
		e.value = "Bearer " + key
	}
	return e
}

func readHeader(v settings.Value) string {
	if name := strings.ToLower(v.Value); settings.IsString(v.Node) && (name == bearerHeader || name == apiKeyHeader) {
		return name
	}
	v.Bad("must be authorization (a bearer token) or x-api-key")
	return ""
}

// readKey reads the file with a key. The problems that it reports do not contain the path.
func readKey(v settings.Value, dir string) (path, key string) {
	name := v.Name()
	if name == "" {
		return "", "" // reported
	}
	if path = name; !filepath.IsAbs(name) {
		path = filepath.Join(dir, name)
	}
	key, err := Read(path)
	if err != nil {
		v.Add("%s", err.Error())
	}
	return path, key
}

// Read reads a file that contains only the key of an engine. The error does not contain the
// path.
func Read(path string) (key string, err error) {
	data, err := reload.Read(path, maxKey)
	if err != nil {
		return "", fmt.Errorf("must name a file with the key: %s", why(err))
	}
	key = strings.TrimSpace(string(data))
	if key == "" || strings.ContainsAny(key, " \t\r\n") || !httpguts.ValidHeaderFieldValue(key) {
		return "", errors.New("must name a file that contains only the key, on one line")
	}
	return key, nil
}

// why returns what is wrong with a file, without its path.
func why(err error) string {
	if bad, ok := errors.AsType[*fs.PathError](err); ok {
		return bad.Err.Error()
	}
	return "it is no regular file, or too large for a key"
}
