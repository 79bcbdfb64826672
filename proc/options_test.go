// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module builds the module's own parser for user space.
func module(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "options")
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-I../kmod", "-o", program, "../kmod/fuzz/options_dump.c").CombinedOutput(); err != nil {
		t.Fatalf("build the module's parser: %v\n%s", err, out)
	}
	return program
}

func TestOptionsAreTheModules(t *testing.T) {
	out, err := exec.Command(module(t)).Output()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{"": 0, "number": 1, "IPv4 address": 2, "IPv6 address": 3, "name": 4, "dma or reg": 5, "mode": 6, "/dev/NAME or ram:SIZE": 7, "process name": 8, "operations": 9, "FIRST-LAST": 10, "krping:NAME": 11, "addresses": 12}
	var want strings.Builder
	for _, o := range Options {
		tests := o.Tests
		if o.Contexts&ping == 0 {
			tests = 0
		}
		fmt.Fprintf(&want, "%s kind=%d min=%d max=%d roles=%d tests=%d\n", o.Name, kinds[o.Value], o.Min, o.Max, o.moduleRoles(), tests)
	}
	if string(out) != want.String() {
		t.Errorf("the module's options:\n%s\nours:\n%s", out, want.String())
	}
}

// moduleRoles is the bit set of enum krping_role.
func (o Option) moduleRoles() uint { return uint(o.Contexts) }

func TestReferenceIsTheOptions(t *testing.T) {
	data, err := os.ReadFile("../kmod/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), OptionTable()) {
		t.Errorf("kmod/PROTOCOL.md does not contain this table:\n%s", OptionTable())
	}
}

// Every combination of options that change which others are allowed: what Check says is
// what the module says.
func TestCheckAgreesWithTheModule(t *testing.T) {
	var commands []Command
	for _, role := range []Role{Client, Server, Stop} {
		for _, block := range []string{"", "v"} {
			for _, test := range []Test{"", WriteLatency, ReadLatency, Bandwidth, FastRegister} {
				for bits := range 1 << 13 {
					bit := func(n int) bool { return bits>>n&1 == 1 }
					c := Command{
						Role: role, Block: block, Test: test, Verbose: bit(0), Validate: bit(0), ServerInv: bit(2), ReadInv: bit(3),
						LocalDMALkey: bit(4), Poll: bit(5), Duplex: bit(6), Force: bit(7),
					}
					if bit(1) {
						c.MemMode = "reg"
					}
					if !bit(8) {
						c.Addr = netip.MustParseAddr("192.168.77.1")
					}
					if bit(9) {
						c.TxDepth, c.QPs = 16384, 1024
					}
					if bit(10) {
						c.Queues, c.Depth = 64, 1024
					}
					if bit(11) {
						tos, count := uint8(255), uint32(0)
						c.TOS, c.Count, c.Size = &tos, &count, 1<<30
					}
					if bit(12) {
						c.Timeout, c.Port = 86400*time.Second, 65535
					}
					commands = append(commands, c)
				}
			}
		}
	}
	for _, c := range []Command{
		{TxDepth: 16385, Test: Bandwidth}, {QPs: 1025, Test: Bandwidth}, {Size: 1<<30 + 1}, {Block: "v", Queues: 65}, {Block: "v", Depth: 1025},
		{MemMode: "x"}, {Timeout: 86401 * time.Second}, {Block: strings.Repeat("a", 28)}, {Block: "a/b"},
	} {
		c.Role, c.Addr = Client, netip.MustParseAddr("fe80::1%eth0")
		commands = append(commands, c)
	}
	for bits := range 1 << 11 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		for _, role := range []Role{Client, Server, Stop} {
			for _, mode := range []string{"", "remote", "tap", "mirror"} {
				c := Command{
					Role: role, Block: "v", Mode: mode, Writeback: bit(0), ReadOnly: bit(0), Target: bit(1), Force: bit(2),
					Addr: netip.MustParseAddr("192.168.77.1"),
				}
				set := func(n int, field *string, value string) {
					if bit(n) {
						*field = value
					}
				}
				set(3, &c.Backing, "ram:64M")
				set(4, &c.Comm, "write_data")
				set(5, &c.Op, "read+write+flush+discard")
				set(6, &c.Sectors, "0-100")
				set(10, &c.Block, "")
				if bit(7) {
					c.PID = 1
				}
				if bit(8) {
					heartbeat := uint32(0)
					c.Heartbeat, c.FastFail = &heartbeat, time.Second
				}
				if bit(9) {
					c.BlockSize = 4096
				}
				commands = append(commands, c)
			}
		}
	}
	v := Command{Role: Client, Addr: netip.MustParseAddr("192.168.77.1"), Block: "v", Mode: "tap", Backing: "ram:1M"}
	for _, backing := range []string{
		"ram:", "ram:1", "ram:1M", "ram:4K", "ram:1048576", "ram:1048577", "ram:1T", "ram:2T", "ram:1P", "ram:1MM", "ram:9999999999999999T", "ram:99999999999999999", "ram:17179869185G", "ram:16777217T",
		"ram:M", "ram:-1M", "ram: 1M", "/dev/", "/dev/vdb", "/dev/a b", "/etc/passwd", "x", "/dev/" + strings.Repeat("a", 122), "/dev/" + strings.Repeat("a", 123),
	} {
		c := v
		c.Backing = backing
		commands = append(commands, c)
	}
	for _, op := range []string{"read", "write+", "+write", "write+write", "discard+flush", "trim", "reads", "read+writes"} {
		c := v
		c.Op = op
		commands = append(commands, c)
	}
	for _, sectors := range []string{"0-0", "1-0", "5", "5-", "-5", "1-2-3", "9999999999999999-9999999999999999", "0-99999999999999999", " 1-2"} {
		c := v
		c.Sectors = sectors
		commands = append(commands, c)
	}
	for _, comm := range []string{"a", strings.Repeat("a", 15), strings.Repeat("a", 16), "a b", "a\x7f"} {
		c := v
		c.Comm = comm
		commands = append(commands, c)
	}
	for _, key := range []string{"krping:v", "krping:", "krping", "other:v", "krping:" + strings.Repeat("a", 56), "krping:" + strings.Repeat("a", 57), "krping:a b", "krping:a:b=c", "KRPING:v"} {
		for _, role := range []Role{Client, Server} {
			c := v
			if c.Role = role; role == Server {
				c.Mode = ""
			}
			c.Key = key
			commands = append(commands, c)
		}
		commands = append(commands, Command{Role: Server, Addr: v.Addr, Key: key}, Command{Role: Stop, Block: "v", Key: key})
	}
	for _, allow := range []string{
		"192.168.77.2", "192.168.77.2+fd77::1", "10.0.0.0/8+fd77::/64", "0.0.0.0/0", "::/0", "::ffff:10.0.0.1/128", "::ffff:10.0.0.1/96", "::ffff:10.0.0.1/95", "1.2.3.4/32", "1.2.3.4/33", "::1/129", "1.2.3.4/", "/8",
		"+", "1.2.3.4+", "+1.2.3.4", "1.2.3", "fd77", "fe80::1%eth0", "1.2.3.4/x", "1.2.3.4/-1", "1.2.3.4/8/8", "1.2.3.4 ", "host", ":", "1.2.3.4/99999999999999999",
		strings.Repeat("1.2.3.4+", 15) + "::1", strings.Repeat("1.2.3.4+", 16) + "::1",
	} {
		for _, c := range []Command{v, {Role: Client, Addr: v.Addr}, {Role: Server, Addr: v.Addr}, {Role: Server, Addr: v.Addr, Test: Bandwidth}, {Role: Server, Addr: v.Addr, Block: "v", Backing: "ram:1M"}} {
			c.Allow = allow
			commands = append(commands, c)
		}
	}
	for _, size := range []uint32{511, 512, 513, 4096, 8192} {
		commands = append(commands, Command{Role: Server, Addr: v.Addr, Block: "v", Backing: "ram:1M", BlockSize: size})
	}
	var input strings.Builder
	for _, c := range commands {
		fmt.Fprintln(&input, c.text())
	}
	cmd := exec.Command(module(t))
	cmd.Stdin = strings.NewReader(input.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(strings.NewReader(string(out)))
	legal := 0
	for _, c := range commands {
		if !answers.Scan() {
			t.Fatal("the module's parser gave too few answers")
		}
		err := c.Check()
		if (answers.Text() == "ok") != (err == nil) {
			t.Fatalf("%s: the module says %q, Check %v", c.text(), answers.Text(), err)
		}
		if err == nil {
			legal++
		}
	}
	if legal < 100 || legal > len(commands)-100 {
		t.Errorf("%d of %d commands are legal: this does not test both", legal, len(commands))
	}
}
