// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/holdgate/holdgate/agentreg/agentregpb"
	"github.com/holdgate/holdgate/agentreg/protocol"
	"github.com/holdgate/holdgate/internal/target"
)

var (
	onUnix    = peerAddr{local: true}
	loopback4 = peerAddr{ip: netip.MustParseAddr("127.0.0.1"), local: true}
	loopback6 = peerAddr{ip: netip.MustParseAddr("::1"), local: true}
	remote4   = peerAddr{ip: netip.MustParseAddr("10.1.2.3")}
	remote6   = peerAddr{ip: netip.MustParseAddr("2001:db8::3")}
	nets      = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
)

func TestHelloIsTaken(t *testing.T) {
	t.Parallel()
	h, rej := checkHello(aHello(idle(time.Minute), func(h *pb.Hello) {
		h.Kinds = []string{"reranker", "llm", "chat"}
		h.Models = []string{"llama", "名前 α"}
		h.Region, h.Labels = "eu", map[string]string{"gpu": "h100", "empty": ""}
	}), onUnix, nil)
	require.Nil(t, rej)
	require.Equal(t, []target.Kind{target.Chat, target.Rerank}, h.info.Kinds)
	require.Len(t, h.targets(), 4)
	require.Equal(t, time.Minute, h.idleTimeout)
	require.True(t, h.canWake)
}

func TestHelloNamesEachBadField(t *testing.T) {
	t.Parallel()
	many := func(n int) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprint("m", i)
		}
		return list
	}
	cases := map[string]struct {
		edit func(h *pb.Hello)
		want string
	}{
		"no id":              {func(h *pb.Hello) { h.AgentId = "" }, "agent_id: is required"},
		"long id":            {func(h *pb.Hello) { h.AgentId = strings.Repeat("x", 257) }, "agent_id: must have at most 256 bytes, has 257"},
		"control in id":      {func(h *pb.Hello) { h.AgentId = "a\nb" }, "agent_id: must not contain control characters"},
		"C1 control in id":   {func(h *pb.Hello) { h.AgentId = "a\u0085" }, "agent_id: must not contain control characters"},
		"bad UTF-8":          {func(h *pb.Hello) { h.AgentId = "a\xff" }, "agent_id: must be valid UTF-8"},
		"instance":           {func(h *pb.Hello) { h.Instance = "1" }, "instance: must be a UUID"},
		"no models":          {func(h *pb.Hello) { h.Models = nil }, "models: must be between 1 and 256, are 0"},
		"257 models":         {func(h *pb.Hello) { h.Models = many(257) }, "models: must be between 1 and 256, are 257"},
		"empty model":        {func(h *pb.Hello) { h.Models = []string{"a", ""} }, "models[1]: is required"},
		"model twice":        {func(h *pb.Hello) { h.Models = []string{"a", "a"} }, "models[1]: is given twice"},
		"no kinds":           {func(h *pb.Hello) { h.Kinds = nil }, "kinds: must be between 1 and 16, are 0"},
		"unknown kind":       {func(h *pb.Hello) { h.Kinds = []string{"chat", "Chat"} }, "kinds[1]: must be chat (llm), embedding or rerank (reranker)"},
		"no slots":           {func(h *pb.Hello) { h.Slots = 0 }, "slots: must be between 1 and 65536, is 0"},
		"too many slots":     {func(h *pb.Hello) { h.Slots = 65537 }, "slots: must be between 1 and 65536, is 65537"},
		"no engine":          {func(h *pb.Hello) { h.Engine = "" }, "engine: is required"},
		"bad region":         {func(h *pb.Hello) { h.Region = "\x00" }, "region: must not contain control characters"},
		"65 labels":          {func(h *pb.Hello) { h.Labels = toSet(many(65)) }, "labels: must be at most 64, are 65"},
		"bad label name":     {func(h *pb.Hello) { h.Labels = map[string]string{"": "x"} }, `labels[""]: the name is required`},
		"bad label value":    {func(h *pb.Hello) { h.Labels = map[string]string{"a": "\t"} }, `labels["a"]: must not contain control characters`},
		"no state":           {func(h *pb.Hello) { h.State = 0 }, "state: must be asleep, waking or serving"},
		"unknown state":      {func(h *pb.Hello) { h.State = 4 }, "state: must be asleep, waking or serving"},
		"negative idle time": {func(h *pb.Hello) { h.IdleTimeout = durationpb.New(-1) }, "idle_timeout: must be between 0 and 8760h0m0s"},
		"endless idle time":  {func(h *pb.Hello) { h.IdleTimeout = &durationpb.Duration{Seconds: 1 << 62} }, "idle_timeout: must be between 0 and 8760h0m0s"},
		"minimum no wake":    {func(h *pb.Hello) { h.MinUpTime = durationpb.New(1) }, "min_up_time: needs can_wake: an engine that was put to sleep could not be woken"},
		"idle without wake":  {func(h *pb.Hello) { h.IdleTimeout = durationpb.New(1) }, "idle_timeout: needs can_wake: an engine that was put to sleep could not be woken"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rej := checkHello(aHello(c.edit), onUnix, nil)
			require.NotNil(t, rej)
			require.Equal(t, protocol.CodeInvalidHello, rej.code)
			require.Equal(t, c.want, rej.message)
		})
	}
}

func toSet(names []string) map[string]string {
	set := map[string]string{}
	for _, n := range names {
		set[n] = "x"
	}
	return set
}

func TestHelloNamesABadGroup(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		name       string
		room, cost uint64
		want       string
	}{
		"no name":       {"", 1, 1, "group.name: is required"},
		"no room":       {"g", 0, 0, "group.room: must be between 1 and 17592186044416, is 0"},
		"endless room":  {"g", 1 << 63, 1, "group.room: must be between 1 and 17592186044416, is 9223372036854775808"},
		"no cost":       {"g", 2, 0, "group.cost: must be between 1 and the room of 2, is 0"},
		"too much cost": {"g", 2, 3, "group.cost: must be between 1 and the room of 2, is 3"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rej := checkHello(aHello(func(h *pb.Hello) {
				h.Group = &pb.Group{Name: c.name, Room: c.room, Cost: c.cost}
			}), onUnix, nil)
			require.NotNil(t, rej)
			require.Equal(t, c.want, rej.message)
		})
	}
}

func TestHelloNamesAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, rej := checkHello(&pb.Hello{}, onUnix, nil)
	require.NotNil(t, rej)
	for _, field := range []string{"agent_id", "instance", "address", "models", "kinds", "slots", "engine", "state"} {
		require.Contains(t, rej.message, field+": ")
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	const invalid, foreign = "!invalid", "!foreign"
	cases := map[string]struct {
		address string
		from    peerAddr
		want    string // the address in force, or invalid, or foreign
	}{
		"loopback on a unix socket":           {"127.0.0.1:8000", onUnix, "127.0.0.1:8000"},
		"other loopback from loopback":        {"127.0.0.2:8000", loopback4, "127.0.0.2:8000"},
		"IPv6 loopback in brackets":           {"[::1]:8000", loopback4, "[::1]:8000"},
		"IPv4 loopback from IPv6 loopback":    {"127.0.0.1:1", loopback6, "127.0.0.1:1"},
		"mapped address is unmapped":          {"[::ffff:127.0.0.1]:8000", onUnix, "127.0.0.1:8000"},
		"the peer's own":                      {"10.1.2.3:65535", remote4, "10.1.2.3:65535"},
		"the peer's own IPv6":                 {"[2001:db8::3]:80", remote6, "[2001:db8::3]:80"},
		"0.0.0.0 from IPv4":                   {"0.0.0.0:80", remote4, "10.1.2.3:80"},
		"0.0.0.0 from IPv6":                   {"0.0.0.0:80", remote6, "[2001:db8::3]:80"},
		"0.0.0.0 from a unix socket":          {"0.0.0.0:80", onUnix, "127.0.0.1:80"},
		"0.0.0.0 mapped":                      {"[::ffff:0.0.0.0]:80", remote4, "10.1.2.3:80"},
		"0.0.0.0 from nowhere":                {"0.0.0.0:80", peerAddr{}, invalid},
		"0.0.0.0 from a link-local peer":      {"0.0.0.0:80", peerAddr{ip: netip.MustParseAddr("fe80::1")}, invalid},
		"in an allowed network":               {"192.168.3.4:80", remote4, "192.168.3.4:80"},
		"mapped in an allowed network":        {"[::ffff:192.168.3.4]:80", remote4, "192.168.3.4:80"},
		"somebody else's":                     {"10.1.2.4:80", remote4, foreign},
		"somebody else's from loopback":       {"10.1.2.4:80", loopback4, foreign},
		"loopback from elsewhere":             {"127.0.0.1:80", remote4, foreign},
		"IPv6 loopback from elsewhere":        {"[::1]:80", remote6, foreign},
		"metadata service from a unix socket": {"169.254.169.254:80", onUnix, invalid},
		"name":                                {"localhost:8000", onUnix, invalid},
		"zone":                                {"[fe80::1%eth0]:80", onUnix, invalid},
		"loopback with a zone":                {"[::1%lo]:80", onUnix, invalid},
		"unspecified IPv6":                    {"[::]:80", remote6, invalid},
		"multicast":                           {"224.0.0.1:80", onUnix, invalid},
		"IPv6 multicast":                      {"[ff02::1]:80", onUnix, invalid},
		"broadcast":                           {"255.255.255.255:80", onUnix, invalid},
		"link-local":                          {"[fe80::1]:80", onUnix, invalid},
		"port 0":                              {"127.0.0.1:0", onUnix, invalid},
		"port too large":                      {"127.0.0.1:65536", onUnix, invalid},
		"no port":                             {"127.0.0.1", onUnix, invalid},
		"no brackets":                         {"::1:80", onUnix, invalid},
		"empty":                               {"", onUnix, invalid},
		"space":                               {" 127.0.0.1:80", onUnix, invalid},
		"URL":                                 {"http://127.0.0.1:80", onUnix, invalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, rej := checkHello(aHello(func(h *pb.Hello) { h.Address = c.address }), c.from, nets)
			switch c.want {
			case invalid:
				require.NotNil(t, rej)
				require.Equal(t, protocol.CodeInvalidHello, rej.code)
			case foreign:
				require.NotNil(t, rej)
				require.Equal(t, protocol.CodeAddressNotAllowed, rej.code)
			default:
				require.Nil(t, rej)
				require.Equal(t, c.want, h.info.Address)
			}
		})
	}
}

// FuzzHello feeds any bytes to the reader of a Hello. What is taken must keep
// every limit, and its address must be one that Envoy can dial.
func FuzzHello(f *testing.F) {
	for _, h := range []*pb.Hello{
		aHello(), aHello(asleep), aHello(idle(time.Second)),
		{},
		aHello(func(h *pb.Hello) { h.Address = "[::ffff:192.168.0.1]:80" }),
		aHello(func(h *pb.Hello) { h.Labels = map[string]string{"a": "b"} }),
		member("a", 2, 1),
	} {
		b, err := proto.Marshal(h)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m pb.Hello
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		for _, from := range []peerAddr{onUnix, remote4, {}} {
			h, rej := checkHello(&m, from, nets)
			if rej != nil {
				require.NotEmpty(t, rej.code)
				require.NotEmpty(t, rej.message)
				continue
			}
			a, err := netip.ParseAddrPort(h.info.Address)
			require.NoError(t, err)
			require.NotZero(t, a.Port())
			require.False(t, a.Addr().Is4In6() || a.Addr().IsUnspecified() || a.Addr().IsLinkLocalUnicast() || a.Addr().IsMulticast() || a.Addr().Zone() != "")
			require.NoError(t, allowed(a.Addr(), from, nets))
			for _, n := range append([]string{h.info.ID, h.info.Engine}, h.info.Models...) {
				require.NoError(t, protocol.CheckName(n))
			}
			require.NotEmpty(t, h.targets())
			require.Positive(t, h.slots)
			require.LessOrEqual(t, h.group.cost, h.group.room)
			require.Equal(t, h.group.name == "", h.group.cost <= 0)
			require.GreaterOrEqual(t, h.idleTimeout, time.Duration(0))
		}
	})
}

// Backends are the router's own: an agent that took the id of one would get its key.
func TestIDsOfBackendsAreForTheRouterAlone(t *testing.T) {
	t.Parallel()
	r := New(Options{})
	far := aHello(func(h *pb.Hello) { h.AgentId, h.Address = "backend/gpu", "192.0.2.1:8000" })
	_, rej := (&service{registry: r}).check(far, peerAddr{local: true})
	require.Equal(t, "invalid_hello: agent_id: must not begin with backend/: these are the router's own", rej.Error())
	h, rej := (&service{registry: r, own: true}).check(far, peerAddr{})
	require.Nil(t, rej)
	require.Equal(t, "192.0.2.1:8000", h.info.Address)
	require.NoError(t, protocol.CheckAddress(netip.MustParseAddrPort("[2001:db8::1]:80")))
	require.EqualError(t, protocol.CheckAddress(netip.MustParseAddrPort("169.254.0.1:80")), "must not be a link-local address")
}
