// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"krping/agent/disk/verify"
	"krping/agent/doctor"
	"krping/agent/stats/status"
	"krping/bridge/cli"
	"krping/proc"
)

func TestExitCodes(t *testing.T) {
	failed := func(errno unix.Errno) error { return fmt.Errorf("x: %w", &proc.CommandError{Errno: errno}) }
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {fmt.Errorf("x"), 1}, {usagef("x"), 2}, {&verify.Mismatch{}, 3}, {failed(unix.EBADMSG), 3},
		{fmt.Errorf("x: %w", proc.ErrNotLoaded), 4}, {failed(unix.EADDRNOTAVAIL), 4}, {failed(unix.ECONNREFUSED), 5},
		{failed(unix.ETIMEDOUT), 5}, {failed(unix.EPROTO), 5}, {failed(unix.EINTR), 130}, {context.Canceled, 130},
		{interruptedError{failed(unix.ECONNRESET)}, 130}, {failed(unix.EBUSY), 1},
		{failed(unix.EINVAL), 2}, {failed(unix.EOPNOTSUPP), 2}, {failed(unix.ENODEV), 1}, {failed(unix.EADDRINUSE), 1},
	} {
		if got := exitCode(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
}

func TestDryRun(t *testing.T) {
	for args, want := range map[string]string{
		"client --addr 192.168.77.1 --count 100 --validate":           "client,addr=192.168.77.1,port=9999,count=100,validate",
		"client --addr fd77::1 --block vol0 --queues 2 --timeout 30s": "client,addr6=fd77::1,port=9999,timeout=30,block=vol0,queues=2",
		"server --addr6 fe80::1%eth0 --port 1 --size 70000 --verbose": "server,addr6=fe80::1%eth0,port=1,size=70000,verbose",
		"client --addr 1.2.3.4 --rlat --poll --size 4KiB --tos 40":    "client,addr=1.2.3.4,port=9999,rlat,size=4096,tos=40,poll",
		"server --addr ::1 --bw --tx_depth 8 --qps 3 --mem_mode reg":  "server,addr6=::1,port=9999,bw,mem_mode=reg,txdepth=8,qps=3",
		"client --addr 1.2.3.4 --threads 2 --port 7":                  "client,addr=1.2.3.4,port=7\nclient,addr=1.2.3.4,port=8",
		"client --addr 1.2.3.4 --count 0":                             "client,addr=1.2.3.4,port=9999,count=0",
		"client -a 10.0.0.1:7 -C 5 -S 4k -V -t 30":                    "client,addr=10.0.0.1,port=7,count=5,size=4096,timeout=30,validate",
		"client -a [fd77::1]:7 -p 7 -b vol0 --heartbeat 7s":           "client,addr6=fd77::1,port=7,block=vol0,heartbeat=7",
		"client -a 10.0.0.1 -b v --mode tap --backing ram:64MiB":      "client,addr=10.0.0.1,port=9999,block=v,mode=tap,backing=ram:64M",
		"client -a 10.0.0.1 -b v --mode tap --backing vdb":            "client,addr=10.0.0.1,port=9999,block=v,mode=tap,backing=/dev/vdb",
		"client -a 10.0.0.1 -b pool/image --source lo":                "client,addr=10.0.0.1,port=9999,block=pool/image,source=127.0.0.1",
		"client -a localhost -p 7":                                    "client,addr=127.0.0.1,port=7",
		"client -a 10.0.0.1 --verb send --bw --qp ud -S 1k -d 5 -V":   "client,addr=10.0.0.1,port=9999,verb=send,bw,qp=ud,duration=5,size=1024,validate",
		"client -a 10.0.0.1 --verb read --lat --count 7":              "client,addr=10.0.0.1,port=9999,verb=read,lat,count=7",
		"client -a 10.0.0.1 --verb write_imm --bw --srq --rx_depth 9": "client,addr=10.0.0.1,port=9999,verb=write_imm,bw,rxdepth=9,srq",
		"server -a 10.0.0.1 --verbs --size 1M":                        "server,addr=10.0.0.1,port=9999,verbs,size=1048576",
	} {
		var out bytes.Buffer
		if err := run(t.Context(), append(strings.Fields(args), "--dry-run"), &out); err != nil || out.String() != want+"\n" {
			t.Errorf("%s: %q, %v, want %q", args, out.String(), err, want)
		}
	}
}

func TestEveryOptionIsAFlag(t *testing.T) {
	p := &program{}
	flags := map[proc.Context]*pflag.FlagSet{
		proc.PingClient: clientCommand(p).Flags(), proc.PingServer: serverCommand(p).Flags(), proc.BlockServer: serverCommand(p).Flags(),
		proc.BlockClient: clientCommand(p).Flags(), proc.BlockStop: stopCommand(p).Flags(),
	}
	reference := optionsReference()
	for _, o := range proc.Options {
		if !strings.Contains(reference, "\n"+o.Name) || !strings.Contains(reference, strings.ReplaceAll(o.Text, "`", "")) {
			t.Errorf("the reference has no %s", o.Name)
		}
		for c, set := range flags {
			if o.Contexts&c == 0 || slices.Contains([]string{"client", "server", "stop"}, o.Name) || c == proc.BlockStop && o.Name == "block" {
				continue // these are commands, and the argument of stop
			}
			if set.Lookup(o.Name) == nil {
				t.Errorf("%s: no flag for %s", o.Name, c)
			}
		}
	}
}

func TestWriteAndVerifyAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	data := []string{file, "--size", "64KiB", "--offset", "4KiB", "--bs", "8KiB", "--seed", "3"}
	var out bytes.Buffer
	if err := run(t.Context(), append([]string{"write"}, data...), &out); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), append([]string{"verify", "--pattern", "random"}, data...), &out); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), append([]string{"verify", "--pattern", "zero"}, data...), &out); exitCode(err) != exitMismatch {
		t.Errorf("another pattern: %v, want a mismatch", err)
	}
}

func TestDoctorReport(t *testing.T) {
	r := doctor.Report{Problems: 1, Findings: []doctor.Finding{
		{Check: "mtu", Level: doctor.OK, Found: "fine"}, {Check: "module", Level: doctor.Problem, Found: "gone", Cause: "why", Fix: "a && b"},
	}}
	for asJSON, want := range map[bool]string{
		false: "ok       mtu: fine\nproblem  module: gone\n           cause: why\n           fix: a && b\n2 findings, 1 problem, 0 warnings\n",
		true: `{"version":1,"findings":[{"check":"mtu","level":"ok","found":"fine"},{"check":"module","level":"problem","found":"gone",` +
			`"cause":"why","fix":"a && b"}],"problems":1,"warnings":0}` + "\n",
	} {
		var out bytes.Buffer
		if err := writeReport(&out, r, asJSON); err != nil || out.String() != want {
			t.Errorf("%v, printed %q, want %q", err, out.String(), want)
		}
	}
}

func TestTop(t *testing.T) {
	for args, want := range map[string]string{
		"top": "needs a terminal", "top --once --interval 1ms": "100ms", "top vol0": `unexpected argument "vol0"`,
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard); exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

// A line about something that lasts appears only then, and is removed.
func TestWaiting(t *testing.T) {
	t.Setenv("TERM", "xterm")
	before := os.Stderr
	defer func() { os.Stderr = before }()
	master, terminal := pty(t)
	os.Stderr = terminal
	newWait("a short time").end()
	w := newTimed("five seconds", 5*time.Second)
	time.Sleep(2100 * time.Millisecond)
	fmt.Fprint(cli.AfterProgress(terminal), "result ") // removes the line
	w.end()
	w.end()
	cli.ShowLine("left")
	cli.RemoveLine()
	os.Stderr = before
	fmt.Fprint(terminal, "end")
	text := ""
	for part := make([]byte, 4096); !strings.HasSuffix(text, "end"); {
		n, err := master.Read(part)
		if err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		text += string(part[:n])
	}
	if !strings.HasPrefix(text, "\rfive seconds [") || !strings.Contains(text, "%\r\x1b[Kresult ") || !strings.HasSuffix(text, "\r\x1b[Kend") || strings.Contains(text, "short") {
		t.Errorf("%q", text)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]sizeFlag{"512": 512, "4k": 4096, "64K": 65536, "1M": 1 << 20, "64KiB": 65536, "1MB": 1000000, "2GiB": 2 << 30} {
		var s sizeFlag
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v, want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "9EiBs", "99999999999999999999"} {
		var s sizeFlag
		if err := s.Set(text); err == nil {
			t.Errorf("%q: accepted as %d", text, s)
		}
	}
}

// Errors about the right volume and its only writer say what to do.
func TestHintsAboutVolumes(t *testing.T) {
	for _, tc := range []struct {
		command string
		errno   unix.Errno
		want    string
	}{
		{"client,addr=10.0.0.1,block=vol0", unix.EBUSY, "--read-only, or replace it with --take-over"},
		{"client,addr=10.0.0.1,block=vol0,mode=tap,backing=/dev/vdb", unix.EBUSY, "the --backing disk"},
		{"server,addr=10.0.0.1,block=vol0,backing=/dev/vdb", unix.EBUSY, "lsblk"},
		{"stop,block=vol0", unix.EBUSY, "--force"},
		{"client,addr=10.0.0.1,block=vol0,uuid=x", unix.ESTALE, "is the file system of the volume mounted"},
		{"client,addr=10.0.0.1,block=vol0,uuid=x", unix.EPROTONOSUPPORT, "without --uuid"},
	} {
		if got := hint(&proc.CommandError{Command: tc.command, Errno: tc.errno}); !strings.Contains(got, tc.want) {
			t.Errorf("%s: %v: %q, want %q", tc.command, tc.errno, got, tc.want)
		}
	}
}

// Names are others' choice, and a served volume has a role and no device.
func TestStatIsSafeToPrint(t *testing.T) {
	served, err := proc.ParseSessions("id=0 name=vol4 role=target mode=remote dev=- state=live peer=10.0.0.1:9999 ibdev=-")
	if err != nil {
		t.Fatal(err)
	}
	s := status.Status{
		Sessions: append(served, proc.Session{Name: "a\x1b[2K\r", Role: "client", Dev: "krping0", State: "live", Peer: "\x07", Writer: "\u009b"}),
		Threads:  []proc.Thread{{Number: 1, Device: "rxe\x1b0"}}, Problems: []string{"\x1b[31mno"},
	}
	var out strings.Builder
	if err := writeStatus(&out, s, false); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\r\x07\u009b") || !strings.Contains(out.String(), `a\x1b[2K\x0d`) {
		t.Errorf("%q", out.String())
	}
	table := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"VOLUME ROLE DEVICE STATE", " vol4 target - live 10.0.0.1:9999 ", " client /dev/krping0 live "} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if s.Sessions[1].Name != "a\x1b[2K\r" {
		t.Error("the caller's status was changed: JSON must have the true names")
	}
}

func TestDoctorIsSafeToPrint(t *testing.T) {
	r := doctor.Report{Findings: []doctor.Finding{{Level: doctor.Problem, Check: "nvme", Found: "nqn.\x1b[2K\r", Cause: "\x07", Fix: "a\nb \u009b"}}, Problems: 1}
	var out strings.Builder
	if err := writeReport(&out, r, false); err != nil || strings.ContainsAny(out.String(), "\x1b\r\x07\u009b") || !strings.Contains(out.String(), "fix: a\nb ") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestDmesgIsSafeToPrint(t *testing.T) {
	messages := []proc.Message{{Subject: "vol\x1b[2K", Peer: "10.0.0.1\r", Text: "a\nb", Level: 3}}
	var out strings.Builder
	err := printMessages(t.Context(), &out, func(context.Context) (proc.Message, error) {
		if len(messages) == 0 {
			return proc.Message{}, io.EOF
		}
		m := messages[0]
		messages = nil
		return m, nil
	}, false)
	if err != nil || strings.ContainsAny(out.String(), "\x1b\r") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestStatShowsUUIDAndAccess(t *testing.T) {
	fs, err := proc.NewFS("../../proc/testdata")
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := fs.Sessions()
	if err != nil {
		t.Fatal(err)
	}
	sessions = append(sessions, proc.Session{Name: "vol5", Role: "client", UUID: "u", Version: 2}, proc.Session{Name: "vol6", Role: "client", ReadOnly: true, UUID: "u", Version: 2},
		proc.Session{Name: "vol7", Role: "target", UUID: "u"})
	var out strings.Builder
	if err := writeStatus(&out, status.Status{Sessions: sessions}, false); err != nil {
		t.Fatal(err)
	}
	table := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"vol0 client unknown writes, perhaps beside others: the target does not say",
		"vol1 client 5f6a7c1e-6d0c-4d6e-9a53-4f1c7b0f3a11 shared by any number of clients; in the target's memory only",
		"vol4 target 7d3c0d52-0a6e-4c3b-8f0e-2a7b1c9d4e66 written by 192.168.77.2",
		"vol5 client u the only writer", "vol6 client u read-only", "vol7 target u no client writes",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := writeStatus(&out, status.Status{Sessions: sessions}, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"uuid":"7d3c0d52-0a6e-4c3b-8f0e-2a7b1c9d4e66","volatile":false,"shared":false,"writer":"192.168.77.2"`, `"version":2,"volatile":true,"shared":true`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
