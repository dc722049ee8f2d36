// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin"
)

func newStatusCommand() *cobra.Command {
	var (
		flags viewFlags
		site  bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a router's map, models and agents, or all routers of a site",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			call := statusCall()
			if site {
				call.Query = url.Values{"site": {"1"}}
				return show(cmd, &flags, call, printSiteStatus)
			}
			return show(cmd, &flags, call, printStatus)
		},
	}
	flags.register(cmd)
	flags.registerWatch(cmd)
	cmd.Flags().BoolVar(&site, "site", false, "show all routers of the site, which share their state, and the models with the demand of all")
	return cmd
}

func printSiteStatus(out io.Writer, s *admin.SiteStatus) {
	w := newTable(out)
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
	w := newTable(out)
	fmt.Fprintf(w, "router\t%s\n", state)
	fmt.Fprintf(w, "site\t%s\n", cmp.Or(s.SiteID, "none: nothing is redirected, and only models of backends are held"))
	fmt.Fprintf(w, "map\t%s\n", describeMap(s.Map))
	fmt.Fprintf(w, "requests\t%d in flight\n", s.InFlight)
	_ = w.Flush()
	printModels(out, w, s.Models)
	if len(s.Agents) > 0 {
		fmt.Fprintln(out)
		printAgents(w, out, s.Agents)
	}
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
	fmt.Fprintln(w, "MODEL\t"+paint(plainColor, "STATE")+"\tSERVING\tASLEEP\tAGENT WOKEN\tDEMAND\tWANTED\tDESTINATION\tNOTE")
	for _, m := range models {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\t%s\n", cell(m.Model), paintState(m.State), m.Serving, m.Asleep, yesNo(m.Waking), m.Demand,
			yesNo(m.Wanted), cmp.Or(m.Destination, "-"), modelNote(out, &m))
	}
	_ = w.Flush()
}

func printAgents(w *tabwriter.Writer, out io.Writer, agents []admin.AgentStatus) {
	fmt.Fprintln(w, "AGENT\t"+paint(plainColor, "STATE")+"\tROUTING\tIN USE\tADDRESS\tENGINE\tLOAD\tMODELS\tKINDS\tNOTE")
	for _, a := range agents {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%d/%d\t%s\t%s\t%s\t%s\t%s\t%s\n", cell(a.ID), paintState(a.State), yesNo(a.Routing),
			bar(out, float64(a.InFlight), float64(a.Slots)), a.InFlight, a.Slots,
			cell(a.Address), cell(a.Engine), load(a.Signals), cell(strings.Join(a.Models, ",")), strings.Join(a.Kinds, ","), cell(note(a)))
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
		fmt.Fprintf(w, "%s\t%d\t%v ago\t%s\t%s\n", cell(g.Envoy), g.Requests, time.Since(g.LastSeen).Round(time.Second), yesNo(g.Log), what)
	}
	_ = w.Flush()
}

// modelNote returns what a model waits for, or how long its wake has taken; "-" for neither.
func modelNote(out io.Writer, m *admin.ModelStatus) string {
	switch {
	case m.Waits != "":
		return cell(m.Waits)
	case m.WakingSince.IsZero():
		return "-"
	}
	elapsed := time.Since(m.WakingSince).Round(time.Second)
	text := fmt.Sprintf("starting for %v", elapsed)
	if m.WakeSeconds > 0 {
		usual := time.Duration(m.WakeSeconds * float64(time.Second)).Round(time.Second)
		text = bar(out, elapsed.Seconds(), usual.Seconds()) + text + fmt.Sprintf(" of about %v", usual)
	}
	return text
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
