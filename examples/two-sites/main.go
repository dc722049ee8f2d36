// SPDX-License-Identifier: Apache-2.0

// Command two-sites starts two sites that list each other in their maps. Each has an
// Envoy and a holdgate serve, and only site b has an engine. A request to site a is
// redirected to site b and is still authenticated there. Ctrl-C ends everything.
//
// With -once it sends the request itself, checks the answer and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/access"
)

const (
	model = "hello"
	keyID = "demo"
	// agentName is the name of the part that registers the engine.
	agentName = "the agent"
	// startLimit is how long the parts may take until a request can be sent.
	startLimit = 30 * time.Second
)

func main() {
	once := flag.Bool("once", false, "make the request, check its answer and end")
	holdgate := flag.String("holdgate", "bin/holdgate", "the `program` that make build creates")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *holdgate, *once)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "two-sites:", err)
		os.Exit(1)
	}
}

// fleet is the two sites and the engine.
type fleet struct {
	holdgate string // the program
	dir      string
	key      string // the caller's
	a, b     *site
	agent    int // its process id
	// registered is set once the agent has registered at site b.
	registered bool
	parts      []part // in the order of their start
}

// part is a process or server, which may end by itself.
type part struct {
	name string
	done <-chan struct{}
	stop func() error
}

// run returns when ctx ends, or with an error when a part fails. Everything that it
// started has ended then.
func run(ctx context.Context, out io.Writer, holdgate string, once bool) (err error) {
	f := &fleet{holdgate: holdgate, key: access.NewKey()}
	if f.dir, err = os.MkdirTemp("", "hg"); err != nil { // short, because paths of sockets are limited
		return fmt.Errorf("making a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(f.dir) }()
	defer func() { err = errors.Join(err, f.stop()) }()
	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := f.start(starting); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if once {
		return f.ask(starting, out)
	}
	f.announce(out)
	return f.write(ctx)
}

// start brings up both sites and the engine of site b.
func (f *fleet) start(ctx context.Context) error {
	bin, err := envoy.Find(ctx)
	if err != nil {
		return err
	}
	if err := f.writeFiles(); err != nil {
		return err
	}
	// Clients drop the Authorization header when the host changes, so the sites have
	// different host names.
	for _, s := range []struct {
		at         **site
		name, host string
	}{{&f.a, "a", "127.0.0.1"}, {&f.b, "b", "localhost"}} {
		if *s.at, err = f.startSite(ctx, bin, s.name, s.host); err != nil {
			return fmt.Errorf("site %s: %w", s.name, err)
		}
	}
	if err := f.startEngine(ctx, f.b); err != nil {
		return err
	}
	for _, s := range []*site{f.a, f.b} {
		if err := f.pushMap(ctx, s); err != nil {
			return fmt.Errorf("pushing the map to site %s: %w", s.id, err)
		}
	}
	return f.untilWarm(ctx)
}

// writeFiles writes the keys and the secret, which both sites use.
func (f *fleet) writeFiles() error {
	entry, err := access.Entry{ID: keyID, Tenant: "demo"}.YAML(f.key)
	if err != nil {
		return fmt.Errorf("writing the keys file: %w", err)
	}
	for name, text := range map[string]string{
		"keys.yaml": "keys:\n" + entry,
		// A key is random, and long enough to be a secret.
		"hop-secret": access.NewKey() + "\n",
	} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
	}
	return nil
}

// stop ends all parts, the last started first.
func (f *fleet) stop() error {
	var errs []error
	for _, p := range slices.Backward(f.parts) {
		if err := p.stop(); err != nil {
			errs = append(errs, fmt.Errorf("stopping %s: %w", p.name, err))
		}
	}
	return errors.Join(errs...)
}

// ended returns an error if a part has ended. Once the agent has registered, the user
// may end it.
func (f *fleet) ended() error {
	for _, p := range f.parts {
		if p.name == agentName && f.registered {
			continue
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended by itself", p.name)
		default:
		}
	}
	return nil
}

func (f *fleet) announce(out io.Writer) {
	fmt.Fprintf(out, `Two sites run. Site a, %s, has no engine; site b, %s, has one.
A request to site a follows its redirect to site b:

  curl -L %s%s \
    -H 'content-type: application/json' -H 'authorization: Bearer %s' \
    -d '%s'

Why, and what site a knows:

  %s explain --admin %s --model %s --key %s
  %s status --admin %s

Without the agent of site b both sites are cold, and site a holds the request:

  kill %d

Ctrl-C ends everything.
`, f.a.url, f.b.url, f.a.url, path, f.key, body, f.holdgate, f.a.adminURL, model, keyID, f.holdgate, f.a.adminURL, f.agent)
}
