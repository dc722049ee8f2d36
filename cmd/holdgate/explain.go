// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admin/client"
	"github.com/holdgate/holdgate/internal/policy"
)

func newExplainCommand() *cobra.Command {
	var (
		flags            viewFlags
		model, kind, key string
		hops             int
	)
	cmd := &cobra.Command{
		Use:   "explain --model M",
		Short: "Show what a router would do with a request now, and why",
		Long: "Explain gets the decision of a router for a request that is not sent. It takes no\n" +
			"slot, wakes nothing and uses no quota.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if model == "" {
				return usageError{errors.New("--model is required")}
			}
			query := url.Values{"model": {model}, "kind": {kind}, "hops": {strconv.Itoa(hops)}}
			if key != "" {
				query.Set("key", key)
			}
			call := client.Call{Method: http.MethodGet, Path: "/v1/explain", Query: query}
			return show(cmd, &flags, call, printExplanation)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&model, "model", "", "name of the model, or an alias")
	cmd.Flags().StringVar(&kind, "kind", "chat", "chat, embedding or rerank")
	cmd.Flags().StringVar(&key, "key", "", "`id` of the caller's key; without it the request has none")
	cmd.Flags().IntVar(&hops, "hops", 0, "how often the request was redirected before")
	_ = cmd.RegisterFlagCompletionFunc("model", completeModels(&flags.adminFlags))
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"chat", "embedding", "rerank"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func printExplanation(out io.Writer, e *admin.Explanation) {
	fmt.Fprintf(out, "%s\n\n", verdict(e))
	if e.Destination != "" && e.Destination != string(policy.Replica) {
		fmt.Fprintf(out, "from a gateway it is sent on by the destination %s\n\n", e.Destination)
	}
	switch e.Scope {
	case admin.ScopeSite:
		fmt.Fprint(out, "quotas, hold limits and demand are those of all routers of the site\n\n")
	case admin.ScopeRouter:
		fmt.Fprint(out, "quotas, hold limits and demand are those of this router, because the server of --shared does not answer\n\n")
	}
	w := newTable(out)
	for _, s := range e.Steps {
		mark := " "
		if s.Taken {
			mark = ">"
		}
		fmt.Fprintf(w, "%s %s\t%s\n", mark, cell(s.Step), cell(s.Why))
	}
	_ = w.Flush()
	if len(e.Siblings) == 0 {
		return
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "SIBLING\tHOME\tSTATE\tWHY")
	for _, c := range e.Siblings {
		home := "-"
		if c.Home > 0 {
			home = strconv.Itoa(c.Home)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cell(c.Site), home, cmp.Or(c.State, "-"), cell(c.Why))
	}
	_ = w.Flush()
}

// verdict returns the decision as one line.
func verdict(e *admin.Explanation) string {
	switch e.Decision {
	case admin.DecisionRedirect:
		return fmt.Sprintf("redirect: %d to %s at %s", e.Status, e.Site, e.URL)
	case admin.DecisionRefuse:
		text := fmt.Sprintf("refuse: %d %s: %s", e.Status, e.Code, e.Message)
		if e.RetryAfter > 0 {
			text += fmt.Sprintf(" (retry-after: %d)", e.RetryAfter)
		}
		return text
	case admin.DecisionHold:
		return "hold: for at most " + e.HoldBudget
	case admin.DecisionQueue:
		return "queue: served when a slot is free"
	}
	return e.Decision
}
