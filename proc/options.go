// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Context is a kind of command, or a set of kinds.
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
	testVerb    // a client with verb
	testVerbs   // a server with verbs
	perfTests   = testWlat | testRlat | testBw
	clientTests = testPing | perfTests | testFr | testVerb
	allTests    = clientTests | testVerbs
)

var testBits = []struct {
	bit  Tests
	name string
}{
	{testPing, string(Ping)}, {testWlat, string(WriteLatency)}, {testRlat, string(ReadLatency)}, {testBw, string(Bandwidth)}, {testFr, string(FastRegister)},
	{testVerb, "verb"}, {testVerbs, string(Verbs)},
}

// testBit returns the test of a ping/pong command as a set.
func testBit(c Context, t Test) Tests {
	if c == PingClient && t == Verbs {
		return testVerb
	}
	for _, b := range testBits {
		if b.name == string(t) {
			return b.bit
		}
	}
	return 0
}

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
			names = append(names, b.name)
		}
	}
	return strings.Join(names, ", ")
}

// Option is an option of the grammar of /proc/krping. The module's own table is option_defs in
// kmod/options.c; a test compares them.
type Option struct {
	Name     string
	Value    string  // kind of its value: "" for none, "number", or a description
	Min, Max uint32  // range of a number
	Contexts Context // commands that take it
	Tests    Tests   // tests of ping/pong commands that take it
	Default  string
	Text     string // one line for the reference, with unit
}

// Range describes the values that the option takes.
func (o Option) Range() string {
	switch {
	case o.Value == "number":
		return fmt.Sprintf("%d to %d", o.Min, o.Max)
	default:
		return o.Value
	}
}

// Options are all options of /proc/krping in the order of the reference. kmod/INTERFACE.md contains
// OptionTable's output.
var Options = []Option{
	{Name: "client", Contexts: PingClient | BlockClient, Tests: allTests, Text: "run a ping/pong client; with `block`, attach a volume as a block device"},
	{Name: "server", Contexts: PingServer | BlockServer, Tests: allTests, Text: "run a ping/pong server for one client; with `block`, serve a volume until it is stopped"},
	{Name: "stop", Contexts: BlockStop, Text: "detach the volume; with `target`, stop serving it"},
	{Name: "addr", Value: "IPv4 address", Contexts: connected, Tests: allTests, Text: "address of the server; a server may listen at 0.0.0.0"},
	{Name: "addr6", Value: "IPv6 address", Contexts: connected, Tests: allTests, Text: "IPv6 address of the server, with `%ifname` if link-local; a server may listen at ::"},
	{Name: "port", Value: "number", Min: 1, Max: 65535, Contexts: connected, Tests: allTests, Default: "9999", Text: "port of the server in the RDMA connection manager's TCP port space"},
	{Name: "count", Value: "number", Max: math.MaxUint32, Contexts: ping, Tests: clientTests, Default: "0",
		Text: "number of pings, or of operations per connection; 0: a client until interrupted, a server until its client disconnects"},
	{Name: "size", Value: "number", Min: 1, Max: 1 << 30, Contexts: ping, Tests: allTests, Default: "64 (server: 65536, `verbs`: 1048576; atomics: 8)",
		Text: "bytes per operation; server: the largest it accepts. A device's own limit may be lower; the error message names it"},
	{Name: "timeout", Value: "number", Min: 1, Max: 86400, Contexts: ping | BlockClient, Tests: allTests, Default: "10 (block: 600)",
		Text: "seconds; ping/pong: limit of connection set-up and of each step; block: how long I/O waits for a lost target"},
	{Name: "tos", Value: "number", Max: 255, Contexts: ping | BlockClient, Tests: allTests,
		Text: "IP type of service of both sides' packets; server: the one it requires of its client"},
	{Name: "verbose", Contexts: ping, Tests: testPing, Text: "log the first 64 bytes of pings, at most a few per second"},
	{Name: "validate", Contexts: ping, Tests: testPing | testVerb, Text: "check the data of each ping or message; a mismatch fails with `EBADMSG`"},
	{Name: "mem_mode", Value: "dma or reg", Contexts: ping, Tests: testPing | perfTests, Default: "dma (with `server_inv` or `read_inv`: reg)",
		Text: "dma: memory has one key for the whole connection; reg: a new key for each use"},
	{Name: "server_inv", Contexts: ping, Tests: testPing, Text: "the server's SENDs invalidate the client's keys; must be set on both sides; implies `mem_mode=reg`"},
	{Name: "read_inv", Contexts: ping, Tests: testPing, Text: "the server's RDMA READs invalidate its own key; iWARP only; implies `mem_mode=reg`"},
	{Name: "local_dma_lkey", Contexts: ping, Tests: testPing | testWlat | testBw, Text: "RDMA WRITE from unregistered memory, with the device's local key"},
	{Name: "wlat", Contexts: ping, Tests: testWlat, Text: "measure the latency of RDMA WRITEs, client and server in turn"},
	{Name: "rlat", Contexts: ping, Tests: testRlat, Text: "measure the latency of RDMA READs by the client"},
	{Name: "bw", Contexts: ping, Tests: testBw | testVerb, Text: "measure the bandwidth of RDMA WRITEs by the client, or of `verb`"},
	{Name: "fr", Contexts: ping, Tests: testFr, Text: "measure the time of a REG_MR and its LOCAL_INV, independently on each side"},
	{Name: "poll", Contexts: ping, Tests: perfTests | testVerb | testVerbs, Text: "busy-poll for completions instead of sleeping; a server that gets none sleeps. `wlat`, and `lat` of a `write`, always poll"},
	{Name: "duplex", Contexts: ping, Tests: testBw | testVerb, Text: "the server sends, too; `bw` alone: must be set on both sides"},
	{Name: "txdepth", Value: "number", Min: 1, Max: 16384, Contexts: ping, Tests: testBw | testVerb, Default: "64", Text: "messages in flight on each connection or queue pair; with `validate` as many as one memory region of the device holds, of 16 MiB at most, and the result says how many"},
	{Name: "qps", Value: "number", Min: 1, Max: 1024, Contexts: ping, Tests: testBw | testVerb, Default: "1", Text: "connections or queue pairs of one thread; `bw` alone: must be equal on both sides"},
	{Name: "block", Value: "name", Contexts: block, Text: "name of a volume: 1 to 63 characters, parts of `[A-Za-z0-9._-]` joined by `/`; no part is empty, `.` or `..`"},
	{Name: "queues", Value: "number", Min: 1, Max: 64, Contexts: BlockClient, Default: "one per CPU, at most 16", Text: "queues (connections) of the block device"},
	{Name: "depth", Value: "number", Min: 1, Max: 1024, Contexts: BlockClient, Default: "128", Text: "requests in flight on each queue"},
	{Name: "fast_fail", Value: "number", Min: 1, Max: 86400, Contexts: BlockClient, Default: "`timeout`",
		Text: "seconds that I/O waits for a lost target; then it fails at once until the target is back"},
	{Name: "heartbeat", Value: "number", Max: 3600, Contexts: BlockClient, Default: "5",
		Text: "seconds of silence after which the target is lost; 0: detect loss only by I/O unanswered for 30 s"},
	{Name: "mode", Value: "mode", Contexts: BlockClient, Default: "remote",
		Text: "remote: the target stores the data; tap: the local backing does, and the target gets copies"},
	{Name: "backing", Value: "/dev/NAME or ram:SIZE", Contexts: BlockClient | BlockServer,
		Text: "block device, or memory; server: the disk to serve; client: the local disk of `mode=tap`"},
	{Name: "comm", Value: "process name", Contexts: BlockClient, Text: "tap: forward only I/O of processes with this name"},
	{Name: "pid", Value: "number", Min: 1, Max: 4194304, Contexts: BlockClient, Text: "tap: forward only I/O of this process"},
	{Name: "op", Value: "operations", Contexts: BlockClient, Default: "all", Text: "tap: forward only these operations: `read`, `write`, `flush`, `discard`, joined by `+`"},
	{Name: "sectors", Value: "FIRST-LAST", Contexts: BlockClient, Default: "all", Text: "tap: forward only I/O that touches these sectors of 512 bytes"},
	{Name: "writeback", Contexts: BlockServer, Text: "acknowledge writes before they are on stable storage; they are after a flush"},
	{Name: "read_only", Contexts: BlockClient | BlockServer, Text: "a server refuses writes to the volume; a client does not write, so it attaches beside the one that does"},
	{Name: "block_size", Value: "number", Min: 512, Max: 4096, Contexts: BlockServer, Default: "512", Text: "logical block size in bytes: 512 or 4096"},
	{Name: "key", Value: "krping:NAME", Contexts: BlockClient | BlockServer,
		Text: "description of a key of type `logon`, of 16 to 64 bytes, in a keyring of the writing process; both sides must prove that they have the key"},
	{Name: "allow", Value: "addresses", Contexts: PingServer | BlockServer, Tests: allTests, Default: "all",
		Text: "serve only clients with these addresses: 1 to 16 of `ADDR` or `ADDR/BITS`, joined by `+`"},
	{Name: "target", Contexts: BlockStop, Text: "stop serving the volume, instead of detaching the one of that name"},
	{Name: "force", Contexts: BlockStop, Text: "detach even if the device is in use; I/O not finished within 2 s fails"},
	{Name: "uuid", Value: "UUID", Contexts: BlockClient | BlockServer, Text: "a server's volume has this UUID; a client attaches to the volume with this UUID only"},
	{Name: "shared", Contexts: BlockServer, Text: "any number of clients may write to the volume (for cluster file systems)"},
	{Name: "take_over", Contexts: BlockClient, Text: "if another client writes to the volume, fence and replace it"},
	{Name: "source", Value: "IP address", Contexts: PingClient | BlockClient, Tests: clientTests,
		Text: "connect from this address of this host, with `%ifname` if link-local; it must be of the family of `addr` or `addr6`"},
	{Name: "verb", Value: "operation", Contexts: PingClient, Tests: testVerb,
		Text: "measure this operation against a server with `verbs`: `send`, `write`, `write_imm`, `read`, `fetch_add` or `cmp_swap`; with `bw` or `lat`"},
	{Name: "verbs", Contexts: PingServer, Tests: testVerbs, Text: "serve one client with `verb`, whatever it measures: it tells the server"},
	{Name: "lat", Contexts: PingClient, Tests: testVerb, Text: "measure the latency of `verb`: a round trip of `send`, `write` and `write_imm`, else from post to completion"},
	{Name: "qp", Value: "queue pair type", Contexts: PingClient, Tests: testVerb, Default: "rc",
		Text: "`rc`, `uc` (`send`, `write` and `write_imm`) or `ud` (`send`); of `uc` and `ud` lost messages are counted, where the receiver sees messages: not those of `write` without `validate`"},
	{Name: "duration", Value: "number", Min: 1, Max: 86400, Contexts: PingClient, Tests: testVerb, Text: "seconds that it sends, instead of `count`"},
	{Name: "rxdepth", Value: "number", Min: 1, Max: 16384, Contexts: PingClient, Tests: testVerb, Default: "128, with `srq` at least `qps`",
		Text: "`send`, `write_imm`: receives posted on each queue pair, or with `srq` for all together"},
	{Name: "srq", Contexts: PingClient, Tests: testVerb, Text: "`send`, `write_imm`: all queue pairs take their receives from one shared receive queue"},
	{Name: "signal", Value: "number", Min: 1, Max: 16384, Contexts: PingClient, Tests: testVerb, Default: "`txdepth`/4, 1 to 64",
		Text: "one message in so many has a completion; at most `txdepth`. At a `rate` of less than ten completions a second every one has"},
	{Name: "inline", Value: "number", Min: 1, Max: 4096, Contexts: PingClient, Tests: testVerb,
		Text: "post messages inline, with data in the work request: its bytes, at least `size`"},
	{Name: "mtu", Value: "number", Min: 256, Max: 4096, Contexts: PingClient, Tests: testVerb, Default: "that of the path",
		Text: "bytes of data in a packet, at most: 256, 512, 1024, 2048 or 4096"},
	{Name: "reads", Value: "number", Min: 1, Max: 255, Contexts: PingClient, Tests: testVerb, Default: "16, or the device's limit",
		Text: "`read`, `fetch_add`, `cmp_swap`: operations that a queue pair has outstanding on the wire"},
	{Name: "rate", Value: "number", Min: 1, Max: 1000000000, Contexts: PingClient, Tests: testVerb, Text: "`bw`: messages a second that each side sends at most, on all queue pairs together"},
	{Name: "poll_queues", Value: "number", Min: 1, Max: 32, Contexts: BlockClient, Default: "none",
		Text: "queues for polled I/O (io_uring with IOPOLL, fio's `hipri`) beside `queues`, at most one per CPU; 64 of both together at most; not with `mode=tap`"},
}

func option(name string) Option {
	return Options[slices.IndexFunc(Options, func(o Option) bool { return o.Name == name })]
}

// check returns an error if a command of that context and test cannot have the option with that
// value.
func (o Option) check(value string, c Context, t Test) error {
	if o.Contexts&c == 0 {
		return fmt.Errorf("%s cannot be used with %s", o.Name, map[Context]string{
			PingClient: "a ping client", PingServer: "a server", BlockClient: "a block client", BlockServer: "a block server", BlockStop: "stop",
		}[c])
	}
	if bit := testBit(c, t); c&ping != 0 && o.Tests&bit == 0 {
		return fmt.Errorf("%s cannot be used with %s", o.Name, bit)
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
