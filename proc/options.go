// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Context is a kind of command, of those that an option goes with.
type Context uint

// Contexts.
const (
	PingClient Context = 1 << iota
	PingServer
	BlockClient
	BlockStop
	BlockServer
)

const (
	ping      = PingClient | PingServer
	connected = ping | BlockClient | BlockServer
	block     = BlockClient | BlockServer | BlockStop
)

var contextNames = []struct {
	context Context
	name    string
}{{PingClient, "client"}, {PingServer, "server"}, {BlockClient, "block client"}, {BlockServer, "block server"}, {BlockStop, "stop"}}

func (c Context) String() string {
	var names []string
	for _, n := range contextNames {
		if c&n.context != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ", ")
}

// Tests is a set of tests.
type Tests uint

const (
	testPing Tests = 1 << iota
	testWlat
	testRlat
	testBw
	testFr
	perfTests = testWlat | testRlat | testBw
	allTests  = testPing | perfTests | testFr
)

var testBits = []struct {
	bit  Tests
	test Test
}{{testPing, Ping}, {testWlat, WriteLatency}, {testRlat, ReadLatency}, {testBw, Bandwidth}, {testFr, FastRegister}}

func (t Tests) String() string {
	if t == 0 {
		return ""
	}
	if t == allTests {
		return "all"
	}
	var names []string
	for _, b := range testBits {
		if t&b.bit != 0 {
			names = append(names, string(b.test))
		}
	}
	return strings.Join(names, ", ")
}

// Option is an option of the grammar of /proc/krping. Its module's twin is option_defs in
// kmod/options.c.
type Option struct {
	Name     string
	Value    string  // what it takes: "" nothing, "number", or in words
	Min, Max uint32  // of a number
	Contexts Context // commands that take it
	Tests    Tests   // of ping/pong commands: tests that take it
	Default  string
	Text     string
}

// Range returns what values the option takes.
func (o Option) Range() string {
	switch {
	case o.Value == "number":
		return fmt.Sprintf("%d to %d", o.Min, o.Max)
	default:
		return o.Value
	}
}

// Options are all options of /proc/krping, in the order of the reference.
var Options = []Option{
	{Name: "client", Contexts: PingClient | BlockClient, Tests: allTests, Text: "ping/pong client, or with `block` a block client"},
	{Name: "server", Contexts: PingServer | BlockServer, Tests: allTests, Text: "ping/pong server: one client, then it ends; or with `block` a block server, which serves a volume until it is stopped"},
	{Name: "stop", Contexts: BlockStop, Text: "end the block session, or with `target` no longer serve the volume"},
	{Name: "addr", Value: "IPv4 address", Contexts: connected, Tests: allTests, Text: "the server's; a server's may be 0.0.0.0"},
	{Name: "addr6", Value: "IPv6 address", Contexts: connected, Tests: allTests, Text: "the same, with `%ifname` if it is link-local"},
	{Name: "port", Value: "number", Min: 1, Max: 65535, Contexts: connected, Tests: allTests, Default: "9999", Text: "TCP-like port of the RDMA connection manager"},
	{Name: "count", Value: "number", Max: math.MaxUint32, Contexts: ping, Tests: allTests, Default: "0",
		Text: "pings, or operations of a test on each connection; 0: client until interrupted, server until its client disconnects"},
	{Name: "size", Value: "number", Min: 1, Max: 1 << 30, Contexts: ping, Tests: allTests, Default: "64 (server: 65536)",
		Text: "bytes of an operation; server: the largest it takes. The device's own limits are lower, and named when exceeded"},
	{Name: "timeout", Value: "number", Min: 1, Max: 86400, Contexts: ping | BlockClient, Tests: allTests, Default: "10 (block: 600)",
		Text: "seconds; ping/pong: of connection set-up and of each step; block: how long I/O waits for the target"},
	{Name: "tos", Value: "number", Max: 255, Contexts: ping, Tests: allTests,
		Text: "type of service of the packets of both sides; server: the one that it demands of its client"},
	{Name: "verbose", Contexts: ping, Tests: testPing, Text: "log the first 64 bytes of each ping, at most a few a second"},
	{Name: "validate", Contexts: ping, Tests: testPing, Text: "compare the data; a mismatch is `EBADMSG`"},
	{Name: "mem_mode", Value: "dma or reg", Contexts: ping, Tests: testPing | perfTests, Default: "dma",
		Text: "reg: memory gets a new key for each use; dma: one key for the connection (section 1.1)"},
	{Name: "server_inv", Contexts: ping, Tests: testPing, Text: "the server's SENDs invalidate the client's keys; on both sides, with `mem_mode=reg`"},
	{Name: "read_inv", Contexts: ping, Tests: testPing, Text: "the server's RDMA READs invalidate its own key; iWARP only, with `mem_mode=reg`"},
	{Name: "local_dma_lkey", Contexts: ping, Tests: testPing | testWlat | testBw, Text: "the source of RDMA WRITEs is named by the device's local key and not registered"},
	{Name: "wlat", Contexts: ping, Tests: testWlat, Text: "test: latency of RDMA WRITEs, both sides in turn"},
	{Name: "rlat", Contexts: ping, Tests: testRlat, Text: "test: latency of RDMA READs by the client"},
	{Name: "bw", Contexts: ping, Tests: testBw, Text: "test: bandwidth of RDMA WRITEs by the client"},
	{Name: "fr", Contexts: ping, Tests: testFr, Text: "test: time of a REG_MR and its LOCAL_INV, on each side for itself"},
	{Name: "poll", Contexts: ping, Tests: perfTests, Text: "spin for completions instead of sleeping"},
	{Name: "duplex", Contexts: ping, Tests: testBw, Text: "the server writes as well; the same on both sides"},
	{Name: "txdepth", Value: "number", Min: 1, Max: 16384, Contexts: ping, Tests: testBw, Default: "64", Text: "RDMA WRITEs in flight on each connection"},
	{Name: "qps", Value: "number", Min: 1, Max: 1024, Contexts: ping, Tests: testBw, Default: "1", Text: "connections, driven by one thread; the same on both sides"},
	{Name: "block", Value: "name", Contexts: block, Text: "volume: 1 to 27 of `[A-Za-z0-9._-]`"},
	{Name: "queues", Value: "number", Min: 1, Max: 64, Contexts: BlockClient, Default: "one per CPU, at most 16", Text: "queue pairs"},
	{Name: "depth", Value: "number", Min: 1, Max: 1024, Contexts: BlockClient, Default: "128", Text: "requests in flight on each"},
	{Name: "fast_fail", Value: "number", Min: 1, Max: 86400, Contexts: BlockClient, Default: "`timeout`",
		Text: "seconds after the loss of the target; then I/O fails at once until it is back"},
	{Name: "heartbeat", Value: "number", Max: 3600, Contexts: BlockClient, Default: "5",
		Text: "seconds of silence after which the target counts as lost; 0: only unanswered I/O tells (30 s)"},
	{Name: "mode", Value: "mode", Contexts: BlockClient, Default: "remote",
		Text: "remote: the target is the disk; tap: the backing is, and copies go to the target"},
	{Name: "backing", Value: "/dev/NAME or ram:SIZE", Contexts: BlockClient | BlockServer,
		Text: "block device or memory; block server: what it serves; client: the local disk of `mode=tap`"},
	{Name: "comm", Value: "process name", Contexts: BlockClient, Text: "tap: forward I/O of processes of this name only"},
	{Name: "pid", Value: "number", Min: 1, Max: 4194304, Contexts: BlockClient, Text: "tap: forward I/O of this process only"},
	{Name: "op", Value: "operations", Contexts: BlockClient, Default: "all", Text: "tap: forward these only: `read`, `write`, `flush`, `discard`, joined by `+`"},
	{Name: "sectors", Value: "FIRST-LAST", Contexts: BlockClient, Default: "all", Text: "tap: forward what touches these sectors (of 512 bytes) only"},
	{Name: "writeback", Contexts: BlockServer, Text: "a write is stable after a flush, not before"},
	{Name: "read_only", Contexts: BlockServer, Text: "the volume cannot be written"},
	{Name: "block_size", Value: "number", Min: 512, Max: 4096, Contexts: BlockServer, Default: "512", Text: "logical block size in bytes: 512 or 4096"},
	{Name: "key", Value: "krping:NAME", Contexts: BlockClient | BlockServer,
		Text: "description of a key of type `logon` in a keyring of the writer, of 16 to 64 bytes: both sides prove that they have it (section 2.1)"},
	{Name: "allow", Value: "addresses", Contexts: PingServer | BlockServer, Tests: allTests, Default: "all",
		Text: "serve clients with these only: up to 16 of `ADDR` or `ADDR/BITS`, joined by `+`"},
	{Name: "target", Contexts: BlockStop, Text: "the volume that this host serves, not the client's session of that name"},
	{Name: "force", Contexts: BlockStop, Text: "even if the device is in use; what is not written within 2 s fails"},
}

func option(name string) Option {
	return Options[slices.IndexFunc(Options, func(o Option) bool { return o.Name == name })]
}

// check says what is wrong with the option in a command of that context and test.
func (o Option) check(value string, c Context, t Test) error {
	if o.Contexts&c == 0 {
		return fmt.Errorf("%s does not go with %s", o.Name, map[Context]string{
			PingClient: "a ping client", PingServer: "a server", BlockClient: "a block client", BlockServer: "a block server", BlockStop: "stop",
		}[c])
	}
	for _, b := range testBits {
		if c&ping != 0 && b.test == t && o.Tests&b.bit == 0 {
			return fmt.Errorf("%s does not go with %s", o.Name, t)
		}
	}
	return o.CheckValue(value)
}

// OptionTable returns the reference of the options as a Markdown table.
func OptionTable() string {
	var b strings.Builder
	b.WriteString("| option | commands | tests | value | default | |\n|---|---|---|---|---|---|\n")
	for _, o := range Options {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", o.Name, o.Contexts, o.Tests, o.Range(), o.Default, o.Text)
	}
	return b.String()
}
