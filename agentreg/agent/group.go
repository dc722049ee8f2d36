// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"time"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/settings"
)

// DefaultMinUpTime is the default of Config.MinUpTime.
const DefaultMinUpTime = 30 * time.Second

// MinUpTimeFor returns the minimum up time for an idle timeout if none is set: the default,
// or the idle timeout if that is shorter.
func MinUpTimeFor(idleTimeout time.Duration) time.Duration {
	if idleTimeout == 0 {
		return DefaultMinUpTime
	}
	return min(idleTimeout, DefaultMinUpTime)
}

// Group is a group of agents that share room for awake engines, such as a GPU. The routers
// keep no more agents awake at once than there is room for.
type Group struct {
	// Name is the name of the group; empty for no group.
	Name string
	// MaxAwake is how many agents of the group may be awake at once; 0 means 1, unless
	// TotalMemory is set. It must be the same for all agents of a group.
	MaxAwake int
	// TotalMemory is how much memory the group's awake agents may use together, and
	// Memory how much this one uses, in bytes. 0: agents are counted instead.
	TotalMemory, Memory int64
}

func (g Group) check(p *settings.Problems) {
	if g.Name == "" {
		if g != (Group{}) {
			p.Add("--group", "is required with --group-max-awake, --group-memory and --memory")
		}
		return
	}
	p.Check("--group", protocol.CheckName(g.Name))
	switch {
	case g.MaxAwake != 0 && g.TotalMemory != 0:
		p.Add("--group-max-awake and --group-memory", "only one of them can be given")
	case g.MaxAwake < 0 || g.MaxAwake > protocol.MaxSlots:
		p.Add("--group-max-awake", "must be between 1 and %d, is %d", protocol.MaxSlots, g.MaxAwake)
	case g.TotalMemory < 0 || g.TotalMemory > protocol.MaxRoom:
		p.Add("--group-memory", "must be at most %d bytes, is %d", int64(protocol.MaxRoom), g.TotalMemory)
	case g.TotalMemory == 0 && g.Memory != 0:
		p.Add("--memory", "needs --group-memory")
	case g.TotalMemory > 0 && (g.Memory < 1 || g.Memory > g.TotalMemory):
		p.Add("--memory", "must be between 1 and --group-memory, is %d", g.Memory)
	}
}

// message returns the group of the Hello, nil for no group.
func (g Group) message() *pb.Group {
	switch {
	case g.Name == "":
		return nil
	case g.TotalMemory > 0:
		return &pb.Group{Name: g.Name, Room: uint64(g.TotalMemory), Cost: uint64(g.Memory)} //nolint:gosec // check bounds them
	}
	return &pb.Group{Name: g.Name, Room: uint64(cmp.Or(g.MaxAwake, 1)), Cost: 1} //nolint:gosec // check bounds it
}
