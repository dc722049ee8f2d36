// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdgate/holdgate/agentreg/agent/engines"
)

// errPortTaken means that another process listens at the engine's address.
var errPortTaken = errors.New("the engine's port is in use by something else")

// checkOwner checks that the process that listens at the engine's address belongs to the
// engine: it must be in the engine's process group or descend from the engine. If it is not,
// or that cannot be determined, as with an engine in a container, the process is taken for
// the engine if its list of models has one of the engine's, and rejected if it is known to
// be another one.
func (a *agent) checkOwner(ctx context.Context, e *engine) error {
	sockets := listening(a.engineAddress())
	if len(sockets) == 0 {
		return nil // the address is on another machine or in another network namespace
	}
	own := socketsOf(func(p process) bool { return p.group == e.proc.Pid() || p.isBelow(e.proc.Pid()) })
	foreign := slices.DeleteFunc(slices.Clone(sockets), func(s string) bool { return own[s] })
	switch {
	case len(foreign) == 0:
		return nil
	case len(foreign) < len(sockets):
		return fmt.Errorf("%w: two processes listen on %s", errPortTaken, a.engineAddress())
	}
	offers, err := a.listModels(ctx)
	switch {
	case err == nil && slices.ContainsFunc(offers, func(o engines.Offer) bool { return slices.Contains(a.cfg.Models, o.Model) }):
		return nil
	case sharesSocket(foreign, socketsOf(func(p process) bool { return p.pid == os.Getpid() || p.isBelow(os.Getpid()) })):
		return fmt.Errorf("%w: another engine of this program listens on %s", errPortTaken, a.engineAddress())
	case err == nil && sharesSocket(foreign, socketsOf(func(process) bool { return true })):
		return fmt.Errorf("%w: the process that listens on %s is not the engine's, and its list of models has none of %s",
			errPortTaken, a.engineAddress(), strings.Join(a.cfg.Models, ", "))
	}
	a.log.Warn().Stringer("address", a.engineAddress()).Msg("the process that listens was not started by the engine's command: it is taken for the engine")
	return nil
}

func sharesSocket(list []string, with map[string]bool) bool {
	return slices.ContainsFunc(list, func(s string) bool { return with[s] })
}

// listening returns the names in /proc of the sockets that listen at an address. Sockets
// that listen on all addresses are returned only if none listens on exactly this one.
func listening(at netip.AddrPort) []string {
	var exact, all []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table) //nolint:gosec // two names
		if err != nil {
			continue
		}
		for line := range bytes.Lines(text) {
			const local, state, inode, listens = 1, 3, 9, "0A"
			f := strings.Fields(string(line))
			if len(f) <= inode || f[state] != listens {
				continue
			}
			socket := "socket:[" + f[inode] + "]"
			switch l, err := parseSocketAddress(f[local]); {
			case err != nil || l.Port() != at.Port():
			case l.Addr() == at.Addr():
				exact = append(exact, socket)
			case l.Addr().IsUnspecified() && at.Addr().IsLoopback(): // another address may be on another machine
				all = append(all, socket)
			}
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return all
}

// parseSocketAddress parses an address of /proc/net/tcp: 32-bit words in the processor's
// byte order, as hexadecimal digits, a colon and the port.
func parseSocketAddress(s string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(s, ":")
	ip, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i+4 <= len(ip); i += 4 {
		binary.BigEndian.PutUint32(ip[i:], binary.NativeEndian.Uint32(ip[i:]))
	}
	addr, ok := netip.AddrFromSlice(ip)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", s)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

// process is a process in /proc.
type process struct {
	pid, parent, group int
}

// isBelow reports whether the process descends from ancestor.
func (p process) isBelow(ancestor int) bool {
	for range 64 { // the table changes while it is read
		switch {
		case p.parent == ancestor:
			return true
		case p.parent <= 1:
			return false
		}
		var ok bool
		if p, ok = readProcess(p.parent); !ok {
			return false
		}
	}
	return false
}

func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	// The name of the program may contain anything, including parentheses.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const parent, group = 1, 2
	if len(f) <= group {
		return process{}, false
	}
	p := process{pid: pid}
	var errs [2]error
	p.parent, errs[0] = strconv.Atoi(f[parent])
	p.group, errs[1] = strconv.Atoi(f[group])
	return p, errors.Join(errs[:]...) == nil
}

// socketsOf returns the names of the sockets of the processes for which pick returns true,
// as far as /proc shows them.
func socketsOf(pick func(process) bool) map[string]bool {
	sockets := map[string]bool{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); !ok || !pick(p) {
			continue
		}
		files, _ := filepath.Glob(dir + "/fd/*")
		for _, f := range files {
			if to, err := os.Readlink(f); err == nil && strings.HasPrefix(to, "socket:") {
				sockets[to] = true
			}
		}
	}
	return sockets
}
