// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/internal/polltest"
)

// browser is a Chromium without a window, driven by the DevTools protocol over a pipe.
type browser struct {
	t  *testing.T
	in io.WriteCloser

	mu      sync.Mutex
	last    int
	answers map[int]chan message
	faults  map[string][]string // what each tab complained of
}

// message is a message of the DevTools protocol.
type message struct {
	ID        int                       `json:"id,omitempty"`
	SessionID string                    `json:"sessionId,omitempty"`
	Method    string                    `json:"method,omitempty"`
	Params    json.RawMessage           `json:"params,omitempty"`
	Result    json.RawMessage           `json:"result,omitempty"`
	Error     *struct{ Message string } `json:"error,omitempty"`
}

// params are the parameters of a call.
type params map[string]any

// startBrowser starts a browser that ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	read, in, err := os.Pipe()
	require.NoError(t, err)
	out, write, err := os.Pipe()
	require.NoError(t, err)
	profile, err := os.MkdirTemp("", "hgb")
	require.NoError(t, err)
	log := &buffer{}
	// The pages are our own, and as root there is no sandbox.
	cmd := exec.Command(tool(t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
		"--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir="+profile)
	cmd.ExtraFiles = []*os.File{read, write}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "HOME="+profile)
	require.NoError(t, cmd.Start())
	require.NoError(t, read.Close())
	require.NoError(t, write.Close())
	b := &browser{t: t, in: in, answers: map[int]chan message{}, faults: map[string][]string{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.receive(out)
	}()
	t.Cleanup(func() {
		_ = in.Close() // which ends it
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		_ = out.Close()
		<-done
		_ = os.RemoveAll(profile)
		if t.Failed() {
			t.Log("the log of the browser:\n" + log.String())
		}
	})
	return b
}

func (b *browser) receive(out io.Reader) {
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadString(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal([]byte(strings.TrimSuffix(text, "\x00")), &m) != nil {
			continue
		}
		b.mu.Lock()
		if answer := b.answers[m.ID]; answer != nil {
			delete(b.answers, m.ID)
			answer <- m
		} else if fault := faultOf(m); fault != "" {
			b.faults[m.SessionID] = append(b.faults[m.SessionID], fault)
		}
		b.mu.Unlock()
	}
}

// faultOf returns what a page complains of: exceptions, errors of the console, and what the
// browser refused to do; empty: nothing.
func faultOf(m message) string {
	switch m.Method {
	case "Runtime.exceptionThrown":
		return string(m.Params)
	case "Runtime.consoleAPICalled", "Log.entryAdded":
		if strings.Contains(string(m.Params), `"error"`) {
			return string(m.Params)
		}
	}
	return ""
}

// call makes a call of the protocol and returns its result.
func (b *browser) call(session, method string, p params) json.RawMessage {
	b.t.Helper()
	text, err := json.Marshal(p)
	require.NoError(b.t, err)
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	m := message{ID: b.last, SessionID: session, Method: method, Params: text}
	b.answers[m.ID] = answer
	b.mu.Unlock()
	line, err := json.Marshal(m)
	require.NoError(b.t, err)
	_, err = b.in.Write(append(line, 0))
	require.NoError(b.t, err)
	select {
	case m := <-answer:
		require.Nil(b.t, m.Error, "%s: %v", method, m.Error)
		return m.Result
	case <-time.After(20 * time.Second):
		require.FailNow(b.t, "the browser does not answer", method)
		return nil
	}
}

// tab is a tab of the browser.
type tab struct {
	*browser

	session string
}

// tab opens a tab of a width and height, in the light or the dark scheme.
func (b *browser) tab(width, height int, scheme string) *tab {
	b.t.Helper()
	var target struct{ TargetID, SessionID string }
	require.NoError(b.t, json.Unmarshal(b.call("", "Target.createTarget", params{"url": "about:blank"}), &target))
	require.NoError(b.t, json.Unmarshal(b.call("", "Target.attachToTarget", params{"targetId": target.TargetID, "flatten": true}), &target))
	p := &tab{browser: b, session: target.SessionID}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.do(domain+".enable", nil)
	}
	p.size(width, height)
	p.do("Emulation.setEmulatedMedia", params{"features": []params{{"name": "prefers-color-scheme", "value": scheme}}})
	return p
}

func (p *tab) size(width, height int) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", params{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
}

func (p *tab) do(method string, args params) json.RawMessage {
	p.t.Helper()
	if args == nil {
		args = params{}
	}
	return p.call(p.session, method, args)
}

// open goes to an address and waits until it is loaded.
func (p *tab) open(url string) {
	p.t.Helper()
	p.do("Page.navigate", params{"url": url})
	p.until(`location.href === ` + quoted(url) + ` && document.readyState === "complete"`)
}

func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		return `""`
	}
	return string(b)
}

// eval returns what a script returns. It also runs where the page may run none.
func (p *tab) eval(script string) any {
	p.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	text := p.do("Runtime.evaluate", params{"expression": script, "awaitPromise": true, "returnByValue": true})
	require.NoError(p.t, json.Unmarshal(text, &out))
	require.Empty(p.t, string(out.ExceptionDetails), script)
	return out.Result.Value
}

// is reports whether a script returns true.
func (p *tab) is(script string) bool {
	p.t.Helper()
	return p.eval(script) == true
}

// until waits until a script returns true.
func (p *tab) until(script string) {
	p.t.Helper()
	polltest.Within(p.t, 15*time.Second, script, func() bool {
		if p.is(script) {
			return true
		}
		time.Sleep(10 * time.Millisecond)
		return false
	})
}

// text returns the text that a person sees in an element.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return fmt.Sprint(p.eval(`(document.querySelector(` + quoted(selector) + `) || {innerText: "none"}).innerText`))
}

// says waits until an element has a text.
func (p *tab) says(selector, text string) {
	p.t.Helper()
	p.until(`!!document.querySelector(` + quoted(selector) + `) && document.querySelector(` + quoted(selector) + `).innerText.includes(` + quoted(text) + `)`)
}

// press presses a key.
func (p *tab) press(key string) {
	p.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13}
	text := map[string]string{"Enter": "\r"}[key]
	p.do("Input.dispatchKeyEvent", params{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": codes[key], "text": text})
	p.do("Input.dispatchKeyEvent", params{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": codes[key]})
}

// write writes a text where the focus is.
func (p *tab) write(text string) {
	p.t.Helper()
	p.do("Input.insertText", params{"text": text})
}

// complaints returns what the page complained of since the last call.
func (p *tab) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.faults[p.session]
	delete(p.faults, p.session)
	return list
}

// accessible requires that axe finds nothing wrong with the page. Without Node's packages it
// says so and checks nothing.
func (p *tab) accessible() {
	p.t.Helper()
	source, err := os.ReadFile(filepath.Join("clients", "node", "node_modules", "axe-core", "axe.min.js"))
	if os.IsNotExist(err) {
		fmt.Fprintln(os.Stderr, "=====> NOT CHECKED: the page by axe, because there is no Node")
		return
	}
	require.NoError(p.t, err)
	p.eval(string(source) + "; true")
	found := p.eval(`axe.run(document, {resultTypes: ["violations"]}).then((r) =>
		r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html).join(" ")))`)
	require.Empty(p.t, found)
}
