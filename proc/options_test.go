// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// module builds the module's own parser for user space.
func module(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "options")
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-I../kmod", "-o", program, "../kmod/fuzz/options_dump.c", "../kmod/values.c", "../kmod/allow.c", "../kmod/verbs/params.c", "../kmod/wire/name.c").CombinedOutput(); err != nil {
		t.Fatalf("build the module's parser: %v\n%s", err, out)
	}
	return program
}

// The options, their ranges, roles (enum krping_role) and tests are those of the module's parser.
func TestOptionsMatchModule(t *testing.T) {
	out, err := exec.Command(module(t)).Output()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{"": 0, "number": 1, "IPv4 address": 2, "IPv6 address": 3, "name": 4, "dma or reg": 5, "mode": 6, "/dev/NAME or ram:SIZE": 7, "process name": 8, "operations": 9, "FIRST-LAST": 10, "krping:NAME": 11, "addresses": 12, "UUID": 13, "IP address": 14, "operation": 15, "queue pair type": 16}
	var want strings.Builder
	for _, o := range Options {
		tests := o.Tests
		if o.Contexts&ping == 0 {
			tests = 0
		}
		fmt.Fprintf(&want, "%s kind=%d min=%d max=%d roles=%d tests=%d\n", o.Name, kinds[o.Value], o.Min, o.Max, uint(o.Contexts), tests)
	}
	if string(out) != want.String() {
		t.Errorf("the module's options:\n%s\nours:\n%s", out, want.String())
	}
}

func TestProtocolHasOptionTable(t *testing.T) {
	data, err := os.ReadFile("../kmod/INTERFACE.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), OptionTable()) {
		t.Errorf("kmod/INTERFACE.md does not contain this table:\n%s", OptionTable())
	}
}

// Check and the module's parser must agree on every command.
func TestCheckAgreesWithModule(t *testing.T) {
	commands := slices.Concat(
		flagCombinations(), numbersOverTheLimit(), volumeCombinations(), volumeValues(), keyValues(), allowLists(), blockSizes(), identities(), pollQueues(), names(), sources(), verbsCombinations(), verbsServers(),
	)
	legal := 0
	for i, answer := range moduleAnswers(t, commands) {
		err := commands[i].Check()
		if accepted(answer) != (err == nil) {
			t.Fatalf("%s: the module says %q, Check %v", commands[i].text(), answer, err)
		}
		if err == nil {
			legal++
		}
	}
	if legal < 100 || legal > len(commands)-100 {
		t.Errorf("%d of %d commands are legal: want at least 100 legal and 100 illegal ones", legal, len(commands))
	}
}

// moduleAnswers returns what the module's parser says about each command.
func moduleAnswers(t *testing.T, commands []Command) []string {
	t.Helper()
	lines := make([]string, len(commands))
	for i, c := range commands {
		lines[i] = c.text()
	}
	return lineAnswers(t, lines)
}

// accepted says whether the module's parser has accepted a command.
func accepted(answer string) bool { return strings.HasPrefix(answer, "ok ") }

// lineAnswers returns what the module's parser says about each line: "ok" and options, or what is wrong.
func lineAnswers(t *testing.T, commands []string) []string {
	t.Helper()
	cmd := exec.Command(module(t))
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(answers) != len(commands) {
		t.Fatalf("the module's parser gave %d answers to %d commands", len(answers), len(commands))
	}
	return answers
}

// bits is a set of choices, one per bit.
type bits uint

func (b bits) has(n int) bool { return b>>n&1 == 1 }

var testAddr = netip.MustParseAddr("192.168.77.1")

// flagCombinations returns every combination of the options that decide which others are allowed.
func flagCombinations() (commands []Command) {
	for _, role := range []Role{Client, Server, Stop} {
		for _, block := range []string{"", "v"} {
			for _, test := range []Test{"", WriteLatency, ReadLatency, Bandwidth, FastRegister} {
				for b := range bits(1 << 13) {
					commands = append(commands, flagCombination(role, block, test, b))
				}
			}
		}
	}
	return commands
}

func flagCombination(role Role, block string, test Test, b bits) Command {
	c := Command{
		Role: role, Block: block, Test: test, Verbose: b.has(0), Validate: b.has(0), ServerInv: b.has(2), ReadInv: b.has(3),
		LocalDMALkey: b.has(4), Poll: b.has(5), Duplex: b.has(6), Force: b.has(7),
	}
	if b.has(1) {
		c.MemMode = "reg"
		if b.has(0) {
			c.MemMode = "dma"
		}
	}
	if !b.has(8) {
		c.Addr = testAddr
	}
	if b.has(9) {
		c.TxDepth, c.QPs = 16384, 1024
	}
	if b.has(10) {
		c.Queues, c.Depth = 64, 1024
	}
	if b.has(11) {
		tos, count := uint8(255), uint32(0)
		c.TOS, c.Count, c.Size = &tos, &count, 1<<30
	}
	if b.has(12) {
		c.Timeout, c.Port = 86400*time.Second, 65535
	}
	return c
}

func numbersOverTheLimit() []Command {
	commands := []Command{
		{TxDepth: 16385, Test: Bandwidth}, {QPs: 1025, Test: Bandwidth}, {Size: 1<<30 + 1}, {Block: "v", Queues: 65}, {Block: "v", Depth: 1025},
		{MemMode: "x"}, {Timeout: 86401 * time.Second}, {Block: strings.Repeat("a", 64)}, {Block: "a/../b"},
	}
	for i := range commands {
		commands[i].Role, commands[i].Addr = Client, netip.MustParseAddr("fe80::1%eth0")
	}
	return commands
}

// verbsCombinations returns tests of each verb with each set of options, valid and not.
func verbsCombinations() (commands []Command) {
	for _, verb := range []string{"", Send, Write, WriteImm, Read, FetchAdd, CmpSwap, "nothing"} {
		for _, qp := range []string{"", "rc", "uc", "ud", "xrc"} {
			for _, measure := range []string{"", "bw", "lat"} {
				if verb == "" && measure != "lat" {
					continue // written, it is another test
				}
				for b := range bits(1 << 10) {
					commands = append(commands, verbsCombination(verb, qp, measure, b))
				}
			}
		}
	}
	return commands
}

func verbsCombination(verb, qp, measure string, b bits) Command {
	c := Command{Role: Client, Addr: testAddr, Test: Verbs, Verb: verb, QPType: qp, Measure: measure, SRQ: b.has(0), Validate: b.has(1), Duplex: b.has(2)}
	set := func(n int, field *uint32, value uint32) {
		if b.has(n) {
			*field = value
		}
	}
	set(3, &c.Size, 3)
	set(4, &c.QPs, 200)
	set(5, &c.RxDepth, 100)
	set(6, &c.Signal, 65)
	set(6, &c.Inline, 63)
	set(7, &c.TxDepth, 128)
	set(8, &c.MTU, 257)
	set(8, &c.Reads, 8)
	if b.has(9) {
		c.Duration, c.Rate, c.MTU = time.Second, 1000, 1024
		if b.has(7) {
			count := uint32(0)
			c.Count, c.Size = &count, 1025
		}
	}
	return c
}

func verbsServers() (commands []Command) {
	count := uint32(0)
	for _, c := range []Command{
		{}, {Size: 4096}, {Poll: true}, {Allow: "1.2.3.4"}, {Validate: true}, {Count: &count}, {QPs: 1}, {Verb: Send}, {Measure: "bw"}, {Duplex: true}, {Block: "v"}, {SRQ: true}, {Duration: time.Second},
	} {
		c.Role, c.Addr, c.Test = Server, testAddr, Verbs
		commands = append(commands, c)
	}
	return commands
}

// volumeCombinations returns every combination of the options of a volume.
func volumeCombinations() (commands []Command) {
	for b := range bits(1 << 11) {
		for _, role := range []Role{Client, Server, Stop} {
			for _, mode := range []string{"", "remote", "tap"} {
				commands = append(commands, volumeCombination(role, mode, b))
			}
		}
	}
	return commands
}

func volumeCombination(role Role, mode string, b bits) Command {
	c := Command{
		Role: role, Block: "v", Mode: mode, Writeback: b.has(0), ReadOnly: b.has(0), Target: b.has(1), Force: b.has(2),
		Addr: testAddr,
	}
	set := func(n int, field *string, value string) {
		if b.has(n) {
			*field = value
		}
	}
	set(3, &c.Backing, "ram:64M")
	set(4, &c.Comm, "write_data")
	set(5, &c.Op, "read+write+flush+discard")
	set(6, &c.Sectors, "0-100")
	set(10, &c.Block, "")
	if b.has(7) {
		c.PID = 1
	}
	if b.has(8) {
		heartbeat := uint32(0)
		c.Heartbeat, c.FastFail = &heartbeat, time.Second
	}
	if b.has(9) {
		c.BlockSize = 4096
	}
	return c
}

// tapClient is a command that takes every option of a local disk.
func tapClient() Command {
	return Command{Role: Client, Addr: testAddr, Block: "v", Mode: "tap", Backing: "ram:1M"}
}

// volumeValues returns good and bad values of the options that take text.
func volumeValues() (commands []Command) {
	add := func(set func(c *Command, value string), values ...string) {
		for _, value := range values {
			c := tapClient()
			set(&c, value)
			commands = append(commands, c)
		}
	}
	add(func(c *Command, v string) { c.Backing = v },
		"ram:", "ram:1", "ram:1M", "ram:4K", "ram:1048576", "ram:1048577", "ram:1T", "ram:2T", "ram:1P", "ram:1MM", "ram:9999999999999999T", "ram:99999999999999999", "ram:17179869185G", "ram:16777217T",
		"ram:M", "ram:-1M", "ram: 1M", "/dev/", "/dev/vdb", "/dev/a b", "/etc/passwd", "x", "/dev/"+strings.Repeat("a", 122), "/dev/"+strings.Repeat("a", 123))
	add(func(c *Command, v string) { c.Op = v },
		"read", "write+", "+write", "write+write", "discard+flush", "trim", "reads", "read+writes")
	add(func(c *Command, v string) { c.Sectors = v },
		"0-0", "1-0", "5", "5-", "-5", "1-2-3", "9999999999999999-9999999999999999", "0-99999999999999999", " 1-2")
	add(func(c *Command, v string) { c.Comm = v },
		"a", strings.Repeat("a", 15), strings.Repeat("a", 16), "tmux: server", "kworker/0:1", " ", "a b, c", "a\tb", "a\x7f")
	return commands
}

func keyValues() (commands []Command) {
	for _, key := range []string{"krping:v", "krping:", "krping", "other:v", "krping:" + strings.Repeat("a", 64), "krping:" + strings.Repeat("a", 65), "krping:a b", "krping:a:b=c", "KRPING:v"} {
		client, server := tapClient(), tapClient()
		server.Role, server.Mode = Server, ""
		for _, c := range []Command{client, server, {Role: Server, Addr: testAddr}, {Role: Stop, Block: "v"}} {
			c.Key = key
			commands = append(commands, c)
		}
	}
	return commands
}

func allowLists() (commands []Command) {
	for _, allow := range []string{
		"192.168.77.2", "192.168.77.2+fd77::1", "10.0.0.0/8+fd77::/64", "0.0.0.0/0", "::/0", "::ffff:10.0.0.1/128", "::ffff:10.0.0.1/96", "::ffff:10.0.0.1/95", "1.2.3.4/32", "1.2.3.4/33", "::1/129", "1.2.3.4/", "/8",
		"+", "1.2.3.4+", "+1.2.3.4", "1.2.3", "fd77", "fe80::1%eth0", "1.2.3.4/x", "1.2.3.4/-1", "1.2.3.4/8/8", "1.2.3.4 ", "host", ":", "1.2.3.4/99999999999999999",
		strings.Repeat("1.2.3.4+", 15) + "::1", strings.Repeat("1.2.3.4+", 16) + "::1",
	} {
		for _, c := range []Command{
			tapClient(), {Role: Client, Addr: testAddr}, {Role: Server, Addr: testAddr}, {Role: Server, Addr: testAddr, Test: Bandwidth},
			{Role: Server, Addr: testAddr, Block: "v", Backing: "ram:1M"},
		} {
			c.Allow = allow
			commands = append(commands, c)
		}
	}
	return commands
}

func blockSizes() (commands []Command) {
	for _, size := range []uint32{511, 512, 513, 4096, 8192} {
		commands = append(commands, Command{Role: Server, Addr: testAddr, Block: "v", Backing: "ram:1M", BlockSize: size})
	}
	return commands
}

func pollQueues() (commands []Command) {
	for _, n := range []uint32{1, 32, 33} {
		for _, queues := range []uint32{0, 31, 32, 33, 64} {
			for _, c := range []Command{tapClient(), {Role: Client, Addr: testAddr, Block: "v"}, {Role: Client, Addr: testAddr}, {Role: Stop, Block: "v"}} {
				c.Queues, c.PollQueues = queues, n
				commands = append(commands, c)
			}
		}
	}
	return commands
}

func identities() (commands []Command) {
	for _, uuid := range []string{
		"", "123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-42661417400F", "00000000-0000-0000-0000-000000000000",
		"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400", "123e4567-e89b-12d3-a456-4266141740000", "g23e4567-e89b-12d3-a456-426614174000", "x", "123e4567-e89b-12d3-a456-42661417400g", "123e4567-e89b-12d3-a456_426614174000",
	} {
		for b := range bits(1 << 4) {
			for _, c := range []Command{
				tapClient(), {Role: Client, Addr: testAddr, Block: "v"}, {Role: Client, Addr: testAddr},
				{Role: Server, Addr: testAddr, Block: "v", Backing: "ram:1M"}, {Role: Stop, Block: "v"},
			} {
				c.UUID, c.Shared, c.TakeOver, c.ReadOnly = uuid, b.has(0), b.has(1), b.has(2)
				commands = append(commands, c)
			}
		}
	}
	return commands
}

func names() (commands []Command) {
	for _, name := range []string{
		"a", "a/b", "pvc-123e4567-e89b-12d3-a456-426614174000", strings.Repeat("a", 28), strings.Repeat("a", 63), strings.Repeat("a", 64), "a/" + strings.Repeat("a", 61), "a/" + strings.Repeat("a", 62),
		".", "..", "/", "/a", "a/", "a//b", "./a", "a/..", "a/./b", "a b", "a/b c", "...", "a=b",
	} {
		for _, c := range []Command{{Role: Client, Addr: testAddr}, {Role: Server, Addr: testAddr, Backing: "ram:1M"}, {Role: Stop}, {Role: Stop, Target: true}} {
			c.Block = name
			commands = append(commands, c)
		}
	}
	return commands
}

func sources() (commands []Command) {
	for _, addr := range []string{"192.168.77.1", "fd77::1", "fe80::1%eth0"} {
		for _, source := range []string{"192.168.77.3", "fd77::3", "fe80::3%eth1", "192.168.77.3/24", "fe80::1%", "a b"} {
			for _, c := range []Command{{Role: Client}, {Role: Client, Test: Bandwidth}, {Role: Client, Block: "v"}, {Role: Server}, {Role: Server, Block: "v", Backing: "ram:1M"}} {
				c.Addr, c.Source = netip.MustParseAddr(addr), source
				commands = append(commands, c)
			}
		}
	}
	return append(commands, Command{Role: Stop, Block: "v", Source: "192.168.77.3"})
}

// An interface in a Command is replaced by its address before the module gets it.
func TestModuleRefusesSources(t *testing.T) {
	var commands []string
	for _, source := range []string{"", "eth1", "192.168.77", "192.168.77.3%eth1", "192.168.77.3/24", "fe80::1%", "fe80::1%0123456789abcdef", "fe80::1%a b", "fd77::", "fd77:::1", "192.168.77.3,source=192.168.77.3"} {
		commands = append(commands, "client,addr=192.168.77.1,source="+source)
	}
	for i, answer := range lineAnswers(t, commands) {
		if !strings.Contains(answer, "source") || accepted(answer) {
			t.Errorf("%s: %s", commands[i], answer)
		}
	}
}
