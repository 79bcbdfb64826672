// SPDX-License-Identifier: Apache-2.0

//go:build lab

package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// verbsCases are the operations over the types of queue pairs that have them.
var verbsCases = []struct{ verb, qp string }{
	{"send", "rc"}, {"write", "rc"}, {"write_imm", "rc"}, {"read", "rc"}, {"fetch_add", "rc"}, {"cmp_swap", "rc"},
	{"send", "uc"}, {"write", "uc"}, {"write_imm", "uc"}, {"send", "ud"},
}

// onlyRoCE reports whether iWARP lacks a case.
func onlyRoCE(verb, qp string) bool {
	return qp != "rc" || verb != "send" && verb != "write" && verb != "read"
}

// arrived is what a report says of the messages of one side.
type arrived struct{ Received, Lost, Repeated, Reordered, Damaged uint64 }

// report is what is checked of the JSON of krping-bridge client.
type report struct {
	Operations uint64
	Posts      uint64
	Arrived    *arrived
	Received   *arrived
	Latency    *struct{ Count uint64 }
	Error      string
}

// runClient runs krping-bridge client, which must succeed.
func runClient(t *testing.T, port int, args ...string) report {
	t.Helper()
	args = append([]string{guest.Binary(t, "krping-bridge"), "client", "--addr", guest.AddrPort(t, port), "--json"}, args...)
	out, err := guest.TryRun(args...)
	if err != nil {
		t.Fatalf("%q: %v: %s", args[1:], err, out)
	}
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Error != "" || r.Arrived == nil {
		t.Errorf("%q: %s", args[1:], out)
	}
	return r
}

// servers start the other end of a client, in user space or in the kernel.
var servers = map[string]func(t *testing.T) (port int){
	"bridge": func(t *testing.T) int {
		port := guest.NextPort()
		guest.StartPingBridge(t, port)
		return port
	},
	"module": func(t *testing.T) int {
		port := guest.NextPort()
		done := guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,verbs", guest.Addr(t), port))
		t.Cleanup(func() {
			if err := <-done; err != nil {
				t.Errorf("the server in the kernel: %v", err)
			}
		})
		return port
	},
}

// Each operation over each type of queue pairs, from user space to both servers, in both measurements: all messages
// arrive on reliable connections, and the others are accounted for.
func TestVerbsClient(t *testing.T) {
	for name, start := range servers {
		left := 0 // out, with -short
		if name == "bridge" {
			left = 1
		}
		for i, tc := range verbsCases {
			for j, way := range []string{"--bw", "--bw --validate --qps 3", "--bw --validate --duplex", "--lat", "--lat --validate"} {
				if testing.Short() && (i+j)%2 == left {
					continue
				}
				t.Run(strings.Join([]string{name, tc.verb, tc.qp, way}, "/"), func(t *testing.T) {
					if onlyRoCE(tc.verb, tc.qp) {
						needs.Test(t, needs.RoCE)
					}
					if name == "bridge" {
						needs.Test(t, needs.UserSpace)
					}
					args := append(strings.Fields(way), "--verb", tc.verb, "--qp", tc.qp, "--count", "300")
					if tc.verb != "fetch_add" && tc.verb != "cmp_swap" {
						args = append(args, "--size", "1000")
					}
					wantAccounted(t, tc.verb, tc.qp, args, runClient(t, start(t), args...))
				})
			}
		}
	}
}

// wantAccounted checks that a report accounts for each message.
func wantAccounted(t *testing.T, verb, qp string, args []string, r report) {
	t.Helper()
	line := strings.Join(args, " ")
	sent := uint64(300)
	if strings.Contains(line, "--qps 3") {
		sent *= 3
	}
	a := *r.Arrived
	sees := verb != "read" && (verb != "write" || strings.Contains(line, "--validate") || strings.Contains(line, "--lat"))
	want := sent
	if !sees {
		want = 0
	}
	if r.Operations != sent || a.Received+a.Lost != want || a.Damaged > 0 || qp == "rc" && a.Lost+a.Repeated+a.Reordered > 0 || r.Posts < sent {
		t.Errorf("%s: %d operations, %d posts, arrived %+v, want %d", line, r.Operations, r.Posts, a, want)
	}
	if strings.Contains(line, "--lat") && (r.Latency == nil || r.Latency.Count == 0) {
		t.Errorf("%s: no latency", line)
	}
}

// The module as the client of the bridge, with options that concern the server.
func TestVerbsModuleToBridge(t *testing.T) {
	b := guest.StartPingBridge(t, guest.NextPort())
	addr := strings.Replace(b.Addr, ":", ",port=", 1)
	for _, tc := range verbsCases {
		options := []string{"bw", "bw,validate,qps=3", "bw,validate,duplex", "lat", "lat,validate"}
		if tc.verb == "send" || tc.verb == "write_imm" {
			options = append(options, "bw,validate,qps=4,srq,rxdepth=64", "bw,inline=64,signal=1")
		}
		for _, o := range options {
			t.Run(strings.Join([]string{tc.verb, tc.qp, o}, "/"), func(t *testing.T) {
				if onlyRoCE(tc.verb, tc.qp) {
					needs.Test(t, needs.RoCE)
				}
				command := fmt.Sprintf("client,addr=%s,count=300,verb=%s,qp=%s,%s", addr, tc.verb, tc.qp, o)
				if err := guest.Command(command, guest.Limit); err != nil {
					t.Errorf("%s: %v", command, err)
				}
			})
		}
	}
}

// What a device or a server cannot do is refused, and the reason says what would be right.
func TestVerbsRefusals(t *testing.T) {
	port := guest.NextPort()
	guest.StartPingBridge(t, port, "--ping-max-size", "64KiB", "--ping-max-connections", "8")
	for args, want := range map[string]string{
		"--verb send --bw --count 1 --size 128KiB":             "the most is 65536 bytes",
		"--verb send --bw --count 1 --qps 8":                   "the server has its most connections, 8",
		"--verb read --bw --count 1 --reads 255":               "has at most",
		"--verb send --bw --count 1 --size 4KiB --inline 4KiB": "4096 bytes of inline data",
	} {
		argv := append([]string{guest.Binary(t, "krping-bridge"), "client", "--addr", guest.AddrPort(t, port)}, strings.Fields(args)...)
		if out, err := guest.TryRun(argv...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want %q in %s", args, err, want, out)
		}
	}
	runClient(t, port, "--verb", "send", "--bw", "--count", "10")
}

// An interrupted client ends its test in good order; a killed one ends the bridge's part, too.
func TestVerbsClientEnds(t *testing.T) {
	b := guest.StartPingBridge(t, guest.NextPort(), "--verbose")
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGKILL} {
		ended := strings.Count(b.Log.String(), "verbs test has ended")
		client := guest.Start(t, guest.Binary(t, "krping-bridge"), "client", "--addr", b.Addr, "--verb", "write", "--bw", "--validate")
		isSending(t)
		guest.Signal(t, client, sig)
		if err := client.Wait(); (err == nil) != (sig == unix.SIGINT) {
			t.Errorf("the client after %v: %v", sig, err)
		}
		guest.Eventually(t, 20*time.Second, "the bridge has ended the test", func() bool {
			return strings.Count(b.Log.String(), "verbs test has ended") > ended
		})
	}
}

// isSending waits until many packets have been sent.
func isSending(t *testing.T) {
	t.Helper()
	sent := guest.SentPackets
	if guest.Device(t) != "rxe0" {
		sent = sentSegments // siw counts nothing
	}
	before := sent(t)
	guest.Eventually(t, guest.Limit, "the client sends", func() bool { return sent(t) > before+1000 })
}

// sentSegments returns how many TCP segments this host has sent.
func sentSegments(t testing.TB) int {
	t.Helper()
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		t.Fatal(err)
	}
	self, err := fs.Self()
	if err != nil {
		t.Fatal(err)
	}
	counts, err := self.Snmp()
	if err != nil || counts.OutSegs == nil {
		t.Fatalf("no count of TCP segments: %v", err)
	}
	return int(*counts.OutSegs)
}

// A bridge whose RDMA device is removed during a test ends it, and serves again.
func TestVerbsDeviceRemoval(t *testing.T) {
	port := guest.NextPort()
	b := guest.StartPingBridge(t, port)
	client := guest.Start(t, guest.Binary(t, "krping-bridge"), "client", "--addr", b.Addr, "--verb", "send", "--bw", "--qps", "4")
	isSending(t)
	b.RemoveDevice(t)
	if err := client.Wait(); err == nil {
		t.Error("the client of a removed device has succeeded")
	}
	guest.AddDevice(t)
	b.Returns(t)
	runClient(t, port, "--verb", "send", "--bw", "--count", "10")
}
