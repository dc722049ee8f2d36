// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/holdgate/holdgate/internal/certs"
	"github.com/holdgate/holdgate/internal/reload"
)

// DefaultPrefix begins all keys if the address has no prefix.
const DefaultPrefix = "holdgate"

const (
	// dialTimeout limits a connection attempt, including TLS and authentication.
	dialTimeout = time.Second
	// silence is after how long without an answer a connection is closed.
	silence = 3 * time.Second
	// buffer is the size of a connection's read and write buffers, in bytes.
	buffer = 64 << 10
	// maxPassword is the largest password file, in bytes.
	maxPassword = 64 << 10
)

// Address is where the server is and how to log in to it.
type Address struct {
	// URL is valkey://host:port/database, with the schemes redis, and valkeys and rediss for
	// TLS; or unix:///path. Its query may have further addresses (addr), the name that
	// sentinels give to the primary (master_set), and the prefix of all keys (prefix).
	URL string
	// PasswordFile has the password in its last line, and before it, if there are two lines,
	// the user. It is read for each connection.
	PasswordFile string
	// CAFile has the authorities of the server's certificate. Empty: the system's.
	CAFile string
}

// Check returns what is wrong with the URL, without looking for the server.
func Check(rawURL string) error {
	_, _, err := parse(rawURL)
	return err
}

// parse returns the options that the URL stands for, and the prefix.
func parse(rawURL string) (o valkey.ClientOption, prefix string, err error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return o, "", errors.New("is not a URL") // the error may show a password
	}
	if _, set := u.User.Password(); set {
		return o, "", errors.New("has a password: put it into the password file")
	}
	for name := range u.Query() {
		switch name {
		case "addr", "master_set", "prefix", "db":
		default:
			return o, "", fmt.Errorf("has the unknown parameter %s: known are addr, db, master_set and prefix", name)
		}
	}
	if o, err = valkey.ParseURL(rawURL); err != nil {
		return o, "", errors.New("must be valkey://host:port/database or unix:///path, or begin with valkeys, redis or rediss")
	}
	if err := checkTarget(u); err != nil {
		return o, "", err
	}
	prefix = DefaultPrefix
	if u.Query().Has("prefix") {
		prefix = u.Query().Get("prefix")
	}
	if prefix == "" || strings.ContainsAny(prefix, "{}") {
		return o, "", errors.New("must have a prefix without braces")
	}
	return o, prefix, nil
}

// checkTarget returns an error if a URL names no server: the library would use one on this machine.
func checkTarget(u *url.URL) error {
	if u.Scheme == "unix" {
		if u.Host != "" || u.Path == "" {
			return errors.New("must have a path after unix://, such as unix:///run/valkey.sock")
		}
		return nil
	}
	if u.Hostname() == "" {
		return errors.New("has no host")
	}
	if _, err := strconv.ParseUint(cmp.Or(u.Port(), "6379"), 10, 16); err != nil {
		return errors.New("must have a port of at most 65535")
	}
	return nil
}

// CheckFiles reads the files.
func (a Address) CheckFiles() error {
	_, _, err := a.options()
	return err
}

// options returns the options of the library's client, and the prefix.
func (a Address) options() (valkey.ClientOption, string, error) {
	o, prefix, err := parse(a.URL)
	if err != nil {
		return o, "", fmt.Errorf("the address %w", err)
	}
	if a.CAFile != "" {
		if o.TLSConfig == nil {
			return o, "", errors.New("authorities are given for an address without TLS: use valkeys or rediss")
		}
		if o.TLSConfig.RootCAs, err = certs.ReadAuthorities(a.CAFile); err != nil {
			return o, "", fmt.Errorf("reading the authorities: %w", err)
		}
	}
	o.Dialer.Timeout, o.ConnWriteTimeout = dialTimeout, silence
	o.ReadBufferEachConn, o.WriteBufferEachConn = buffer, buffer
	o.DisableCache, o.DisableRetry = true, true
	// A call that shares no connection closes it when its time is over.
	o.AlwaysPipelining, o.PipelineMultiplex = true, 1
	o.ClientSetInfo = valkey.DisableClientSetInfo
	o.Sentinel.TLSConfig, o.Sentinel.Dialer = o.TLSConfig, o.Dialer
	o.Sentinel.TopologyRefreshInterval = 5 * time.Second
	o.ClusterOption.ShardsRefreshInterval = 5 * time.Second
	if err := a.login(&o); err != nil {
		return o, "", err
	}
	return o, prefix, nil
}

// login makes each connection use the password file.
func (a Address) login(o *valkey.ClientOption) error {
	if a.PasswordFile == "" {
		return nil
	}
	user := o.Username
	read := func(valkey.AuthCredentialsContext) (valkey.AuthCredentials, error) {
		c, err := readPassword(a.PasswordFile)
		if c.Username == "" {
			c.Username = user
		}
		return c, err
	}
	c, err := read(valkey.AuthCredentialsContext{})
	if err != nil {
		return err
	}
	o.AuthCredentialsFn = read
	if o.Sentinel.MasterSet != "" {
		o.Sentinel.Username, o.Sentinel.Password = c.Username, c.Password
	}
	return nil
}

// readPassword reads a file with a password, and optionally a user in the line before.
func readPassword(path string) (c valkey.AuthCredentials, err error) {
	text, err := reload.Read(path, maxPassword)
	if err != nil {
		return c, fmt.Errorf("reading the password: %w", err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\r\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	switch {
	case len(lines) > 2:
		return c, fmt.Errorf("reading the password: %s has %d lines: put the password on one, or the user and the password on two", path, len(lines))
	case lines[len(lines)-1] == "":
		return c, fmt.Errorf("reading the password: %s has no password", path)
	case len(lines) == 2:
		c.Username = lines[0]
	}
	c.Password = lines[len(lines)-1]
	return c, nil
}
