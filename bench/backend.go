// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// runBackend is the subcommand "backend": an engine that reads the body and answers at
// once. It is a separate process, so that the load generator has its own garbage
// collector and scheduler.
func runBackend(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("backend", flag.ContinueOnError)
	addressFile := flags.String("address-file", "", "file that gets the address when it is ready")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	if *addressFile != "" {
		if err := writeWhole(*addressFile, listener.Addr().String()); err != nil {
			return err
		}
	}
	server := &http.Server{Handler: http.HandlerFunc(answerChat), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

func answerChat(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("content-type", "application/json")
	_, _ = w.Write(backendAnswer(n))
}

// writeWhole writes a file that no reader sees half written.
func writeWhole(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
