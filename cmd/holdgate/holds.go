// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admin/client"
)

func newHoldsCommand() *cobra.Command {
	var flags viewFlags
	cmd := &cobra.Command{
		Use:   "holds",
		Short: "Show which requests wait at a router, and how long requests were held",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &flags, statusCall(), printHolds)
		},
	}
	flags.register(cmd)
	flags.registerWatch(cmd)
	return cmd
}

func newAgentsCommand() *cobra.Command {
	var flags viewFlags
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "Show the agents of a router, with their slots",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &flags, statusCall(), func(out io.Writer, s *admin.Status) {
				if len(s.Agents) == 0 {
					fmt.Fprintln(out, "no agent is registered")
					return
				}
				printAgents(newTable(out), out, s.Agents)
			})
		},
	}
	flags.register(cmd)
	flags.registerWatch(cmd)
	return cmd
}

func statusCall() client.Call { return client.Call{Method: http.MethodGet, Path: "/v1/status"} }

func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

func printHolds(out io.Writer, s *admin.Status) {
	w := newTable(out)
	if len(s.Waiting) == 0 {
		fmt.Fprintln(out, "no request waits")
	} else {
		fmt.Fprintln(w, "KEY\tTENANT\tMODEL\tKIND\tREQUESTS\tHELD\tOLDEST")
	}
	for _, g := range s.Waiting {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%v\n", cell(cmp.Or(g.KeyID, "-")), cell(g.Tenant), cell(g.Model), g.Kind,
			g.Requests, g.Held, time.Since(g.Since).Round(time.Second))
	}
	_ = w.Flush()
	if s.WaitingMore > 0 {
		fmt.Fprintf(out, "and %s of other keys\n", count(s.WaitingMore, "request"))
	}
	if len(s.HoldTimes) == 0 {
		return
	}
	var all, before float64
	for _, t := range s.HoldTimes {
		all += float64(t.Requests)
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "HELD FOR\tREQUESTS\t")
	for _, t := range s.HoldTimes {
		span := "up to " + inSeconds(t.UpTo)
		if t.UpTo == 0 {
			span = "over " + inSeconds(before)
		}
		before = t.UpTo
		fmt.Fprintf(w, "%s\t%d\t%s\n", span, t.Requests, bar(out, float64(t.Requests), all))
	}
	_ = w.Flush()
}

func inSeconds(s float64) string { return strconv.FormatFloat(s, 'f', -1, 64) + " s" }
