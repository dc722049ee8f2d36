// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin/client"
	"github.com/holdgate/holdgate/internal/events"
)

func newEventsCommand() *cobra.Command {
	var flags viewFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what happens at a router, until Ctrl-C",
		Long: "Events prints a line for each request that is held, released, redirected or refused, and\n" +
			"for each model that wakes or goes to sleep. If the router ends, it waits for the next one\n" +
			"at the same address.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			c, err := flags.client()
			if err != nil {
				return err
			}
			return followEvents(cmd, c, flags.output == "json")
		},
	}
	flags.register(cmd)
	return cmd
}

// eventsPause is how long followEvents waits before it asks again.
const eventsPause = 2 * time.Second

// followEvents prints events until the command is ended. Only the first call may fail.
func followEvents(cmd *cobra.Command, c *client.Client, asJSON bool) error {
	out, last := newScreen(cmd.OutOrStdout()), ""
	return repeat(cmd, eventsPause, func() error {
		return c.Events(cmd.Context(), last, func(id string, data []byte) error {
			if id != "" {
				last = id
			}
			return printEvent(out, data, asJSON)
		})
	})
}

func printEvent(out *screen, data []byte, asJSON bool) error {
	if asJSON {
		return printJSON(out.out, data, true)
	}
	var e events.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("reading an event: %w", err)
	}
	_, err := io.WriteString(out, eventLine(&e))
	return err
}

// eventLine returns an event as a line.
func eventLine(e *events.Event) string {
	words := []string{e.Time.Local().Format(time.TimeOnly), paintAs(string(e.Type), fmt.Sprintf("%-10s", e.Type))}
	if e.Model != "" {
		words = append(words, cell(e.Model))
	}
	if e.Kind != "" {
		words = append(words, e.Kind)
	}
	switch {
	case e.Site != "":
		words = append(words, "to", cell(e.Site))
	case e.Status != 0:
		words = append(words, strconv.Itoa(e.Status))
	case e.Requests > 0:
		words = append(words, count(e.Requests, "request"))
	case e.Events > 0:
		words = append(words, strconv.FormatUint(e.Events, 10), "events")
	}
	if e.Reason != "" {
		words = append(words, cell(e.Reason))
	}
	return strings.Join(words, " ") + "\n"
}
