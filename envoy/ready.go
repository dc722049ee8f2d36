// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdgate/holdgate/internal/proc"
)

// adminAnswerLimit limits the size of an admin answer.
const adminAnswerLimit = 1 << 20

var errNotReady = errors.New("not ready yet")

// waitReady polls until Envoy is ready, Envoy ends, or ctx is done.
func (p *Process) waitReady(ctx context.Context, adminFile string) error {
	ticker := time.NewTicker(startPoll)
	defer ticker.Stop()
	for {
		if err := p.probe(ctx, adminFile); err == nil {
			return nil
		}
		select {
		case <-p.child.Done():
			return fmt.Errorf("it ended: %s", proc.Describe(p.child.Err()))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// probe stores the admin and edge addresses if Envoy is ready.
func (p *Process) probe(ctx context.Context, adminFile string) error {
	text, err := os.ReadFile(adminFile) //nolint:gosec // the path is this program's own.
	if err != nil {
		return err
	}
	at := strings.TrimSpace(string(text))
	switch {
	case at == "":
		return errNotReady
	case filepath.IsAbs(at):
		at = "unix://" + at
	default:
		at = "http://" + at
	}
	admin := NewAdmin(at)
	admin.client.Timeout = time.Second
	if err := admin.Ready(ctx); err != nil {
		return err
	}
	listeners, err := admin.text(ctx, "/listeners?format=json")
	if err != nil {
		return err
	}
	edge, err := edgeAddress(listeners)
	if err != nil {
		return err
	}
	p.admin, p.edge = at, edge
	return nil
}

// Ready returns nil if Envoy answers that it is ready.
func (a *Admin) Ready(ctx context.Context) error {
	_, err := a.text(ctx, "/ready")
	return err
}

// text returns a page of the admin interface.
func (a *Admin) text(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, adminAnswerLimit))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s", errNotReady, resp.Status)
	}
	return body, nil
}

// edgeAddress finds the edge in the admin interface's list of listeners. A port of 0
// means that the listener is not bound yet.
func edgeAddress(listeners []byte) (string, error) {
	var list struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    uint16 `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(listeners, &list); err != nil {
		return "", fmt.Errorf("reading the list of listeners: %w", err)
	}
	for _, l := range list.Statuses {
		if l.Name != edgeListener {
			continue
		}
		if l.Local.Socket.Port == 0 {
			return "", errNotReady
		}
		return net.JoinHostPort(l.Local.Socket.Address, strconv.Itoa(int(l.Local.Socket.Port))), nil
	}
	return "", nil
}

// tailSize is enough for the lines that explain why a start failed.
const tailSize = 4 << 10

// logTail is a writer that passes its input to next and keeps the end of it.
type logTail struct {
	next io.Writer
	mu   sync.Mutex
	kept []byte
}

// Write never fails: a log that cannot be written must not end Envoy.
func (t *logTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailSize; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	t.mu.Unlock()
	if t.next != nil {
		_, _ = t.next.Write(p)
	}
	return len(p), nil
}

func (t *logTail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.kept...)
}
