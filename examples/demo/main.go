// SPDX-License-Identifier: Apache-2.0

// Command demo starts `holdgate up` with a small model that falls asleep quickly, sends
// it requests in the ways that clients do, cold and warm, and prints the times. It fails
// when an answer is not as expected.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// limit is how long the whole demo may take.
const limit = 60 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// step is one request of the demo.
type step struct {
	name   string
	path   string
	stream bool
	cold   bool // the model must be asleep before it
}

var steps = []step{
	{name: "cold chat, streaming", path: "/v1/chat/completions", stream: true, cold: true},
	{name: "warm chat, streaming", path: "/v1/chat/completions", stream: true},
	{name: "cold chat", path: "/v1/chat/completions", cold: true},
	{name: "warm chat", path: "/v1/chat/completions"},
	{name: "cold messages, streaming", path: "/v1/messages", stream: true, cold: true},
	{name: "cold chat again", path: "/v1/chat/completions", cold: true},
}

func run(ctx context.Context) (err error) {
	begin := time.Now()
	up, url, err := startUp(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.stop()) }()
	fmt.Println("The model falls asleep 2 s after an answer. While a cold one starts, a keepalive goes out")
	fmt.Println("every 300 ms; it is the first byte of a cold step.")
	fmt.Printf("%-28s %9s %11s %10s  %s\n", "step", "at", "first byte", "done", "answer")
	for _, s := range steps {
		if s.cold {
			if err := waitFor(ctx, url, "asleep"); err != nil {
				return err
			}
		}
		at := time.Since(begin)
		a, err := ask(ctx, url, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("%-28s %8.2fs %10.3fs %9.3fs  %q\n", s.name, at.Seconds(), a.first.Seconds(), a.done.Seconds(), a.text)
	}
	if err := waitFor(ctx, url, "asleep"); err != nil {
		return err
	}
	fmt.Printf("%-28s %8.2fs\n", "asleep again", time.Since(begin).Seconds())
	return nil
}

// upProcess is a running `holdgate up`.
type upProcess struct {
	cmd *exec.Cmd
	log *bytes.Buffer
}

var listening = regexp.MustCompile(`Holdgate listens on (http://\S+);`)

// startUp starts `holdgate up` and waits for its address.
func startUp(ctx context.Context) (*upProcess, string, error) {
	cmd := exec.Command("bin/holdgate", "up", "-f", "examples/demo/models.yaml")
	u := &upProcess{cmd: cmd, log: &bytes.Buffer{}}
	cmd.Stderr = u.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", fmt.Errorf("starting holdgate up: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("starting holdgate up: %w", err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			select {
			case lines <- scan.Text():
			case <-ctx.Done():
			}
		}
	}()
	for {
		select {
		case line, open := <-lines:
			if !open {
				return nil, "", errors.Join(errors.New("holdgate up ended at its start"), u.stop())
			}
			if m := listening.FindStringSubmatch(line); m != nil {
				go func() {
					for range lines {
					}
				}()
				return u, m[1], nil
			}
		case <-ctx.Done():
			return nil, "", errors.Join(ctx.Err(), u.stop())
		}
	}
}

// stop ends it as Ctrl-C would. The error of an unclean end contains its log.
func (u *upProcess) stop() error {
	_ = u.cmd.Process.Signal(os.Interrupt)
	if err := u.cmd.Wait(); err != nil {
		return fmt.Errorf("holdgate up: %w\n%s", err, u.log)
	}
	return nil
}

// waitFor waits until the model is in the given state.
func waitFor(ctx context.Context, url, state string) error {
	for {
		body, err := get(ctx, url+"/v1/models/smollm2")
		if err == nil && strings.Contains(body, `"state":"`+state+`"`) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the model was not %s in time: %s %w", state, body, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// answer is the result of a step.
type answer struct {
	first, done time.Duration
	text        string
}

func ask(ctx context.Context, url string, s step) (answer, error) {
	body, err := json.Marshal(map[string]any{
		"model": "smollm2", "stream": s.stream, "max_tokens": 12, "temperature": 0,
		"messages": []map[string]string{{"role": "user", "content": "What is the capital of France?"}},
	})
	if err != nil {
		return answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+s.path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	begin := time.Now()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	_, err = in.Peek(1)
	a := answer{first: time.Since(begin)}
	all, readErr := io.ReadAll(in)
	a.done = time.Since(begin)
	if err := errors.Join(err, readErr); err != nil {
		return a, err
	}
	a.text = text(string(all), s.stream)
	if resp.StatusCode != http.StatusOK || a.text == "" {
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, all)
	}
	return a, nil
}

// text returns the generated text in an answer of either API.
func text(body string, stream bool) string {
	documents := []string{body}
	if stream {
		documents = nil
		for line := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				documents = append(documents, data)
			}
		}
	}
	var words strings.Builder
	for _, d := range documents {
		var one struct {
			Choices []struct {
				Message, Delta struct{ Content string }
			}
			Delta struct{ Text string }
		}
		if json.Unmarshal([]byte(d), &one) != nil {
			continue // data: [DONE]
		}
		for _, c := range one.Choices {
			words.WriteString(c.Message.Content + c.Delta.Content)
		}
		words.WriteString(one.Delta.Text)
	}
	return strings.TrimSpace(words.String())
}
