// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// Envoy's defaults for a missing field.
	idleDefault     = 5 * time.Minute
	requestsDefault = 1024
	bufferDefault   = 1 << 20
	panicDefault    = 50
)

// The destinations for which a setup is checked.
const (
	toReplica  = "replica"
	toRoute    = "route"
	toEndpoint = "endpoint"
)

// Level is how bad a finding is.
type Level string

const (
	// Error is a finding with which requests fail, or holds or answers are cut.
	Error Level = "error"
	// Warning is a finding with which something is lost, or fails under some conditions.
	Warning Level = "warning"
	// Note is a finding about what could not be checked, or may be correct.
	Note Level = "note"
)

// Finding is one thing that Check reports. Its strings have no control characters.
type Finding struct {
	Level Level `json:"level"`
	// Path is the place in the setup.
	Path string `json:"path"`
	// Text tells the present value, the required one, and what breaks otherwise.
	Text string `json:"text"`
}

// String returns the finding as one line.
func (f Finding) String() string { return string(f.Level) + ": " + f.Path + ": " + f.Text }

// finding returns a finding. What it names was read from a file or a network, so it is made
// printable.
func finding(level Level, path, format string, args ...any) Finding {
	return Finding{Level: level, Path: printable(path), Text: printable(fmt.Sprintf(format, args...))}
}

// printable returns s with all characters escaped that would not be seen as themselves on a
// terminal.
func printable(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// CheckOptions says what a setup is checked for.
type CheckOptions struct {
	// Budget is the longest hold.
	Budget time.Duration
	// MaxRequestBytes is the largest body; 0 means DefaultMaxRequestBytes.
	MaxRequestBytes int64
	// IdentityMetadata is where a filter puts the identity of the caller; "" for nowhere.
	IdentityMetadata string
	// Destination is how requests are sent on; "" if the setup is to tell.
	Destination string
	// Filter is the name of Holdgate's ext_proc filter; "" if its settings are to tell.
	Filter string
}

// Report is the result of a check.
type Report struct {
	// Destination is what the setup was checked for.
	Destination string    `json:"destination"`
	Findings    []Finding `json:"findings"`
}

// Count returns the number of findings of a level.
func (r *Report) Count(level Level) int {
	n := 0
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// checker collects findings.
type checker struct {
	*Setup
	CheckOptions

	found []Finding
	seen  map[Finding]bool
	// place is the path of the route or the cluster of engines that is being checked, of
	// which there may be many, and kind says which; "" outside of one. alike has the number
	// of places that have a finding in common.
	place, kind string
	alike       map[Finding]int
	// checked has the names of the clusters of engines that were checked.
	checked map[string]bool
}

// Check reports what in s would break holds, or answers of requests that were held. It
// examines Holdgate's filters, and what is around them.
func Check(s *Setup, o CheckOptions) *Report {
	o.MaxRequestBytes = cmp.Or(o.MaxRequestBytes, DefaultMaxRequestBytes)
	c := &checker{Setup: s, CheckOptions: o, seen: map[Finding]bool{}, alike: map[Finding]int{}, checked: map[string]bool{}}
	for _, f := range s.found {
		c.keep(f)
	}
	managers := c.managers()
	c.choose(managers)
	c.Destination = cmp.Or(c.Destination, c.guess(managers))
	c.version()
	held := false
	for _, m := range managers {
		held = c.manager(m) || held
	}
	if held && c.Destination == toReplica {
		c.lanes()
	}
	c.others()
	return &Report{Destination: c.Destination, Findings: c.found}
}

func (c *checker) bad(path, format string, args ...any) { c.add(Error, path, format, args...) }

func (c *checker) warn(path, format string, args ...any) { c.add(Warning, path, format, args...) }

func (c *checker) note(path, format string, args ...any) { c.add(Note, path, format, args...) }

// mostAlike is how many places are listed for the same finding.
const mostAlike = 3

func (c *checker) add(level Level, path, format string, args ...any) {
	f := finding(level, path, format, args...)
	setting, in := strings.CutPrefix(path, c.place)
	if c.place == "" || !in {
		c.keep(f)
		return
	}
	group := Finding{Level: level, Path: c.kind + printable(setting), Text: f.Text}
	if c.alike[group]++; c.alike[group] <= mostAlike {
		c.keep(f)
	}
}

// keep adds a finding unless it is there.
func (c *checker) keep(f Finding) {
	if !c.seen[f] {
		c.seen[f] = true
		c.found = append(c.found, f)
	}
}

// within calls check for a route or a cluster of engines, and adds its findings.
func (c *checker) within(place, kind string, check func()) {
	oldPlace, oldKind := c.place, c.kind
	c.place, c.kind = place, kind
	check()
	c.place, c.kind = oldPlace, oldKind
}

// others reports how many other places have the same finding as those that are listed.
func (c *checker) others() {
	var groups []Finding
	for group, n := range c.alike {
		if n > mostAlike {
			groups = append(groups, Finding{group.Level, fmt.Sprintf("%d other %s", n-mostAlike, group.Path), group.Text})
		}
	}
	slices.SortFunc(groups, func(a, b Finding) int { return cmp.Compare(a.String(), b.String()) })
	for _, f := range groups {
		c.keep(f)
	}
}

// version checks the version of a running Envoy.
func (c *checker) version() {
	if c.major == 0 || c.major > floorMajor || c.major == floorMajor && c.minor >= floorMinor {
		return
	}
	what := "an older Envoy refuses keepalives: the first held request that gets one fails, and later holds are silent"
	if c.Destination == toReplica {
		what = "an older Envoy has no composite cluster and refuses keepalives"
	}
	c.add(c.ifReplica(), "version", "is %d.%d, must be %d.%d or newer: %s", c.major, c.minor, floorMajor, floorMinor, what)
}

// guess returns the destination for which the setup seems to be made.
func (c *checker) guess(managers []*manager) string {
	for _, cluster := range c.clusters {
		if c.usesDestinationMetadata(cluster) {
			return toReplica
		}
	}
	guess := toRoute
	for _, m := range managers {
		for _, f := range m.ours {
			if lane(f.proc) != "" {
				return toReplica
			}
			if slices.Contains(f.proc.GetMetadataOptions().GetReceivingNamespaces().GetUntyped(), PickedNamespace) {
				guess = toEndpoint
			}
		}
	}
	return guess
}

// ifReplica returns the level of something without which requests that go to replicas fail,
// and others lose something.
func (c *checker) ifReplica() Level {
	if c.Destination == toReplica {
		return Error
	}
	return Warning
}

// limit checks a time limit on a request; 0 means none.
func (c *checker) limit(path string, is time.Duration, what string) {
	switch {
	case is > 0 && is <= c.Budget:
		c.bad(path, "is %v, must be 0s: it %s", is, what)
	case is > 0:
		c.warn(path, "is %v, should be 0s: it %s", is, what)
	}
}

// idle checks a timeout that would cut a silent hold; 0 disables the timeout.
func (c *checker) idle(path string, d *durationpb.Duration, missing time.Duration) {
	is := missing
	if d != nil {
		is = d.AsDuration()
	}
	if is > 0 && is <= c.Budget {
		c.bad(path, "is %v, must be 0s or above the hold budget of %v: it cuts a silent hold", is, c.Budget)
	}
}

// lane returns the lane that an ext_proc filter names, "" for none.
func lane(p *extprocv3.ExternalProcessor) string {
	for _, kv := range p.GetGrpcService().GetInitialMetadata() {
		if kv.GetKey() == LaneMetadata {
			return kv.GetValue()
		}
	}
	return ""
}

// cluster returns a cluster by its name, nil if the setup does not have it.
func (c *checker) cluster(name string) *clusterv3.Cluster { return c.clusters[name] }
