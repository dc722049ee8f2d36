// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin"
	"github.com/holdgate/holdgate/internal/admin/client"
)

func newStatusCommand() *cobra.Command {
	var (
		flags        adminFlags
		asJSON, site bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a router's map, models and agents, or all routers of a site",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.client()
			if err != nil {
				return err
			}
			call := client.Call{Method: http.MethodGet, Path: "/v1/status"}
			if site {
				call.Query = url.Values{"site": {"1"}}
				return show(cmd, c, call, asJSON, printSiteStatus)
			}
			return show(cmd, c, call, asJSON, printStatus)
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as the router gave it")
	cmd.Flags().BoolVar(&site, "site", false, "show all routers of the site, which share their state, and the models with the demand of all")
	return cmd
}

func printSiteStatus(out io.Writer, s *admin.SiteStatus) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "site\t%s\n", cmp.Or(s.SiteID, "none"))
	fmt.Fprintf(w, "map\t%s\n", describeMap(s.Map))
	if s.Alone != "" {
		fmt.Fprintf(w, "only this router is known\t%s\n", s.Alone)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
	fmt.Fprintln(w, "ROUTER\tHOST\tADMIN\tVERSION\tUP FOR\tSTATE\tHELD\tIN FLIGHT\tMAP\tNOTE")
	for _, r := range s.Routers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v\t%s\t%d\t%d\t%s\t%s\n", routerName(r), r.Host, r.Admin, r.Version,
			time.Since(r.Started).Round(time.Second), strings.ReplaceAll(r.State, "_", " "), r.Held, r.InFlight, routerMap(r, s.Map), cmp.Or(r.NotReady, "-"))
	}
	_ = w.Flush()
	printModels(out, w, s.Models)
}

// routerName returns the beginning of a router's id, which tells routers of one host apart.
func routerName(r admin.RouterStatus) string {
	name := cmp.Or(r.ID[:min(len(r.ID), 8)], "-")
	if r.This {
		name += " (this)"
	}
	return name
}

// routerMap returns the map of a router, and whether it is another one than inForce, that of the
// router that answers.
func routerMap(r admin.RouterStatus, inForce *admin.MapStatus) string {
	switch {
	case r.MapTag == "":
		return "none"
	case inForce != nil && !strings.Contains(inForce.ETag, r.MapTag):
		return fmt.Sprintf("generation %d, another one", r.Generation)
	}
	return fmt.Sprintf("generation %d", r.Generation)
}

func printStatus(out io.Writer, s *admin.Status) {
	state := "ready"
	switch {
	case !s.Ready:
		state = "not ready: " + s.NotReady
	case s.Warning != "":
		state = "ready, but " + s.Warning
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "router\t%s\n", state)
	fmt.Fprintf(w, "site\t%s\n", cmp.Or(s.SiteID, "none: nothing is redirected, and only models of backends are held"))
	fmt.Fprintf(w, "map\t%s\n", describeMap(s.Map))
	fmt.Fprintf(w, "requests\t%d in flight\n", s.InFlight)
	_ = w.Flush()
	printModels(out, w, s.Models)
	printAgents(out, w, s.Agents)
	printGateways(out, w, s.Gateways)
}

func describeMap(m *admin.MapStatus) string {
	if m == nil {
		return "none"
	}
	age := time.Duration(m.AgeSeconds) * time.Second
	return fmt.Sprintf("generation %d, %s %v ago, %s of which %d may be held here, %s",
		m.Generation, m.Source, age, count(m.Models, "model"), m.Holdable, count(m.Hints, "hint"))
}

func printModels(out io.Writer, w *tabwriter.Writer, models []admin.ModelStatus) {
	if len(models) == 0 {
		return
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "MODEL\tSTATE\tSERVING\tASLEEP\tAGENT WOKEN\tDEMAND\tWANTED\tDESTINATION\tNOTE")
	for _, m := range models {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\t%s\n", m.Model, m.State, m.Serving, m.Asleep, yesNo(m.Waking), m.Demand, yesNo(m.Wanted), cmp.Or(m.Destination, "-"), cmp.Or(m.Waits, "-"))
	}
	_ = w.Flush()
}

func printAgents(out io.Writer, w *tabwriter.Writer, agents []admin.AgentStatus) {
	if len(agents) == 0 {
		return
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "AGENT\tSTATE\tROUTING\tIN USE\tADDRESS\tENGINE\tLOAD\tMODELS\tKINDS\tNOTE")
	for _, a := range agents {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\t%s\t%s\t%s\n", a.ID, a.State, yesNo(a.Routing), a.InFlight, a.Slots,
			a.Address, a.Engine, load(a.Signals), strings.Join(a.Models, ","), strings.Join(a.Kinds, ","), note(a))
	}
	_ = w.Flush()
}

// printGateways prints the Envoys that the router's own bootstrap did not make.
func printGateways(out io.Writer, w *tabwriter.Writer, gateways []admin.GatewayStatus) {
	if len(gateways) == 0 {
		return
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "GATEWAY\tREQUESTS\tLAST\tACCESS LOG\tNOTE")
	for _, g := range gateways {
		what := "-"
		if !g.Log {
			what = "its requests have no slots once they are sent on"
		}
		fmt.Fprintf(w, "%s\t%d\t%v ago\t%s\t%s\n", g.Envoy, g.Requests, time.Since(g.LastSeen).Round(time.Second), yesNo(g.Log), what)
	}
	_ = w.Flush()
}

// load returns the load that an engine reports.
func load(s admin.Signals) string {
	var words []string
	if s.Running != nil {
		words = append(words, fmt.Sprintf("%d running", *s.Running))
	}
	if s.Waiting != nil {
		words = append(words, fmt.Sprintf("%d waiting", *s.Waiting))
	}
	if s.KVUse != nil {
		words = append(words, fmt.Sprintf("KV %.0f%%", *s.KVUse*100))
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

// note returns what is wrong with an agent, "-" if nothing is.
func note(a admin.AgentStatus) string {
	switch {
	case a.Error != "":
		text := fmt.Sprintf("the last wake failed: %q", a.Error) // the agent's own words
		if left := time.Until(a.NextTry); left > 0 {
			text += fmt.Sprintf(", tried again in %v at the earliest", left.Round(time.Second))
		}
		return text
	case !a.Healthy && a.State == "serving":
		return "not healthy"
	case a.Closing:
		return "makes room in group " + a.Group
	}
	return "-"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
