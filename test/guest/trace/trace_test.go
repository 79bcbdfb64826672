// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package trace tests krpingctl trace, the module's tracepoints, and what only the kernel's own show, with I/O to real
// devices inside one VM.
package trace

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/trace/biotrace"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
	"krping/test/output"
)

const volume = 16 << 20 // bytes

// attach attaches a volume of a new bridge.
func attach(t *testing.T, port int, options string) (dev string, bridge *guest.Bridge) {
	t.Helper()
	bridge = guest.StartBridge(t, port, guest.StorePath(t), fmt.Sprint(volume))
	return guest.Attach(t, port, options), bridge
}

// tracing is a running krpingctl trace.
type tracing struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr output.Buffer
}

// start starts krpingctl trace and waits until it traces.
func start(t *testing.T, args ...string) *tracing {
	t.Helper()
	tr := &tracing{t: t, cmd: exec.Command(guest.Binary(t, "krpingctl"), append([]string{"trace"}, args...)...)}
	tr.cmd.Stdout, tr.cmd.Stderr = &tr.stdout, &tr.stderr
	if err := tr.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.cmd.Process.Kill() })
	guest.Eventually(t, guest.TraceStarts, "krpingctl trace traces", func() bool { return strings.Contains(tr.stderr.String(), "tracing") || tr.ended() })
	return tr
}

func (tr *tracing) ended() bool { return unix.Kill(tr.cmd.Process.Pid, 0) != nil }

// stop interrupts the trace, which must end with that exit code.
func (tr *tracing) stop(want int) string {
	tr.t.Helper()
	guest.Signal(tr.t, tr.cmd, unix.SIGINT)
	_ = tr.cmd.Wait()
	if code := tr.cmd.ProcessState.ExitCode(); code != want {
		tr.t.Fatalf("trace: exit code %d, want %d\n%s%s", code, want, tr.stdout.String(), tr.stderr.String())
	}
	return tr.stdout.String()
}

// bios ends a trace with --json and returns its bios.
func (tr *tracing) bios() []biotrace.Bio {
	tr.t.Helper()
	var bios []biotrace.Bio
	for line := range strings.Lines(tr.stop(0)) {
		var b biotrace.Bio
		if err := json.Unmarshal([]byte(line), &b); err != nil {
			tr.t.Fatalf("%q: %v", line, err)
		}
		bios = append(bios, b)
	}
	return bios
}

// complete fails if the trace has reported lost events.
func (tr *tracing) complete() {
	tr.t.Helper()
	if text := tr.stderr.String(); strings.Contains(text, "incomplete") {
		lost(tr.t, text)
	}
}

// lost fails a test that has lost bios. An interrupt that meets a tracing program loses its event, and says so:
// emulated CPUs are in such a program for long, so that counts as late.
func lost(t *testing.T, what string) {
	t.Helper()
	late.ErrorfIf(t, onlyMissed(what), "the trace: %s", what)
}

// onlyMissed reports whether all that a trace says it has lost was lost to an interrupt.
func onlyMissed(what string) bool {
	return strings.Contains(what, " missed because ") && !strings.Contains(what, " dropped because ") && !strings.Contains(what, " not followed because ")
}

// repeat calls f, which has ended a trace, up to five times, until an interrupt has lost none of its events.
func repeat(f func() *tracing) {
	for range 5 {
		if tr := f(); !onlyMissed(tr.stderr.String()) {
			return
		}
	}
}

func write(t *testing.T, dev, name string, args ...string) {
	t.Helper()
	guest.MustKrpingctl(t, append([]string{"write", dev, "--direct", "--any-device", "--name", name}, args...)...)
}

// wantStages checks that the bio has all stages of a command, which add up to its total.
func wantStages(t *testing.T, b *biotrace.Bio) {
	t.Helper()
	sum := b.Queue + b.Send + b.Peer + b.Finish
	if b.Queue <= 0 || b.Send <= 0 || b.Peer <= 0 || b.Finish <= 0 || sum > b.Total || b.Total-sum > time.Microsecond {
		t.Errorf("stages of %+v", *b)
	}
}

// Each write of a process is traced with its offset, size and all stages, even if it is split or merged.
func TestEveryBioIsTraced(t *testing.T) {
	dev, _ := attach(t, 9960, "")
	tr := start(t, dev, "--json")
	write(t, dev, "write_data", "--size", "1MiB", "--bs", "4KiB", "--offset", "1MiB")
	write(t, dev, "big_writes", "--size", "4MiB", "--bs", "2MiB", "--offset", "8MiB")
	// Adjacent pages of one plug are merged into requests.
	guest.Fio(t, dev, "--direct=0", "--rw=write", "--bs=4k", "--size=1m", "--offset=12m", "--end_fsync=1", "--verify=0")
	small, big, merged, cached := map[uint64]bool{}, uint64(0), 0, uint64(0)
	sessions := map[uint32]bool{}
	for _, b := range tr.bios() {
		if "/dev/"+b.Device != dev || b.Status != 0 || b.PID == 0 {
			t.Errorf("bio %+v", b)
		}
		if b.Op != "FLUSH" {
			wantStages(t, &b)
			sessions[b.Session] = true
		}
		switch {
		case b.Comm == "write_data":
			small[b.Sector] = true
			if b.Op != "WRITE" || b.Bytes != 4096 || b.CRC == 0 || b.CGroup == "" {
				t.Errorf("bio %+v", b)
			}
		case b.Comm == "big_writes":
			big += uint64(b.Bytes)
		case b.Op == "WRITE" && b.Sector >= 12<<11 && b.Sector < 13<<11:
			cached += uint64(b.Bytes)
		}
		if b.Merged {
			merged++
		}
	}
	tr.complete()
	if len(small) != 256 || !small[2048] || !small[2048+255*8] {
		t.Errorf("%d of 256 writes of 4 KiB were traced", len(small))
	}
	if big != 4<<20 || cached != 1<<20 {
		t.Errorf("%d bytes of big writes and %d of the page cache were traced, want 4 MiB and 1 MiB", big, cached)
	}
	t.Logf("%d bios shared a request with others", merged)
	if len(sessions) != 1 {
		t.Errorf("sessions of the commands: %v", sessions)
	}
}

// Filters run in the kernel, and each selects the right bios.
func TestFilters(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.StartBridge(t, 9961, guest.StorePath(t), fmt.Sprint(volume), "--writeback") // so that there are flushes
	dev := guest.Attach(t, 9961, "")
	traces := map[string]*tracing{}
	for name, args := range map[string][]string{
		"comm": {"--comm", "write_data"}, "op": {"--op", "read,flush"}, "size": {"--min-size", "64KiB"}, "latency": {"--min-latency", "1h"},
		"pid": {"--pid", fmt.Sprint(os.Getpid())},
	} {
		traces[name] = start(t, append([]string{dev, "--json"}, args...)...)
	}
	write(t, dev, "write_data", "--size", "128KiB", "--bs", "4KiB")
	write(t, dev, "other_writer", "--size", "1MiB", "--bs", "64KiB", "--offset", "1MiB", "--fsync")
	f := guest.OpenDirect(t, dev)
	if _, err := f.ReadAt(guest.Aligned(t, 8192), 4096); err != nil {
		t.Fatal(err)
	}
	check := func(name string, want int, good func(biotrace.Bio) bool) {
		t.Helper()
		n := 0
		for _, b := range traces[name].bios() {
			n++
			if !good(b) {
				t.Errorf("%s: %+v", name, b)
			}
		}
		if n != want && want >= 0 || n == 0 && want < 0 {
			t.Errorf("%s: %d bios, want %d", name, n, want)
		}
	}
	check("comm", 32, func(b biotrace.Bio) bool { return b.Comm == "write_data" && b.Bytes == 4096 })
	check("op", -1, func(b biotrace.Bio) bool { return b.Op == "READ" || b.Op == "FLUSH" })
	check("size", 16, func(b biotrace.Bio) bool { return b.Bytes == 65536 && b.Op == "WRITE" })
	check("latency", 0, func(biotrace.Bio) bool { return false })
	check("pid", 1, func(b biotrace.Bio) bool {
		return b.PID == uint32(os.Getpid()) && b.Op == "READ" && b.Sector == 8 && b.Bytes == 8192
	})
	for _, tr := range traces {
		tr.complete()
	}
}

// A request that is sent again after a lost connection is traced to its end, and --slow names the delay.
func TestSlowRequestAcrossReconnect(t *testing.T) {
	needs.Test(t, needs.Ends)
	dev, bridge := attach(t, 9962, "")
	slow := start(t, dev, "--slow", "1s")
	all := start(t, dev, "--json", "--op", "write")
	file := guest.OpenDirect(t, dev)
	guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
	w := guest.StartWrite(t, file, guest.Aligned(t, 4096))
	w.Waits(1500 * time.Millisecond)
	bridge.Kill()
	guest.SessionBecomes(t, "reconnecting")
	guest.StartBridge(t, 9962, bridge.Store, fmt.Sprint(volume))
	w.Succeeds(20 * time.Second)
	_ = file.Close() // krpingctl refuses to write beside another writer
	write(t, dev, "quick", "--size", "64KiB", "--bs", "4KiB")
	bios := all.bios()
	all.complete()
	waited := 0
	for _, b := range bios {
		wantStages(t, &b)
		if b.Total >= time.Second {
			waited++
			if b.Requeues != 1 || b.Slowest() != biotrace.StageSend {
				t.Errorf("the request was sent again, but: %+v", b)
			}
		}
	}
	if len(bios) != 17 || waited != 1 {
		t.Errorf("%d writes, %d of which waited for the bridge: %+v", len(bios), waited, bios)
	}
	out := slow.stop(1)
	if lines := strings.Count(out, "\n"); lines != 2 || !strings.Contains(out, " send ") || !strings.Contains(out, "SLOWEST") {
		t.Errorf("%s", out)
	}
	if !strings.Contains(slow.stderr.String(), "fail: 1 of 17 bios took 1s or longer, and 0 more") {
		t.Errorf("verdict: %s", slow.stderr.String())
	}
	t.Logf("\n%s%s", out, slow.stderr.String())
	quiet := start(t, dev, "--slow", "30s")
	write(t, dev, "quick", "--size", "64KiB", "--bs", "4KiB")
	if out := quiet.stop(0); !strings.Contains(out, "pass: none of 16 bios took 30s or longer") {
		t.Errorf("verdict:\n%s", out)
	}
}

// Hanging I/O is reported when the trace ends, and --slow fails.
func TestHangingIO(t *testing.T) {
	needs.Test(t, needs.Ends)
	dev, bridge := attach(t, 9963, "")
	slow := start(t, dev, "--slow", "1s")
	file := guest.OpenDirect(t, dev)
	bridge.Kill()
	guest.SessionBecomes(t, "reconnecting")
	w := guest.StartWrite(t, file, guest.Aligned(t, 4096))
	w.Waits(2 * time.Second)
	slow.stop(1)
	if !strings.Contains(slow.stderr.String(), "has not ended after") || !strings.Contains(slow.stderr.String(), "and 1 more have not ended") {
		t.Errorf("verdict: %s", slow.stderr.String())
	}
	guest.StartBridge(t, 9963, bridge.Store, fmt.Sprint(volume))
	w.Succeeds(20 * time.Second)
}

// A disk with a tap has no requests. The device below it, NAMEtarget, has.
func TestTapAndTargetDevice(t *testing.T) {
	needs.Test(t, needs.Ends)
	dev, _ := attach(t, 9964, ",mode=tap,backing=ram:16M")
	tr := start(t, dev, "--json")
	write(t, dev, "write_data", "--size", "256KiB", "--bs", "4KiB")
	guest.Eventually(t, 20*time.Second, "all copies have been forwarded", func() bool { return guest.Session(t, "vol0")["queued"] == "0" })
	head, target := map[uint64]bool{}, map[uint64]bool{}
	for _, b := range tr.bios() {
		switch "/dev/" + b.Device {
		case dev:
			head[b.Sector] = true
			if b.Comm != "write_data" || b.Queue != 0 || b.Parts != 0 || b.Total == 0 {
				t.Errorf("%+v", b)
			}
		case dev + "target":
			target[b.Sector] = true
			wantStages(t, &b)
		default:
			t.Errorf("%+v", b)
		}
	}
	tr.complete()
	if len(head) != 64 || len(target) != 64 {
		t.Errorf("%d bios of the disk and %d of its target, want 64 of each", len(head), len(target))
	}
}

// Bios of other drivers have only some of the stages.
func TestOtherDrivers(t *testing.T) {
	null := guest.NullDisk(t, "trace0", map[string]string{"irqmode": "0"})
	guest.Run(t, "modprobe", "brd", "rd_nr=1", "rd_size=65536")
	defer guest.Run(t, "rmmod", "brd")
	for _, c := range []struct {
		dev      string
		requests bool
		columns  string
	}{{null, true, " QUEUE DEVICE_MS TOTAL"}, {"/dev/ram0", false, " BYTES TOTAL"}} {
		header, _, _ := strings.Cut(start(t, c.dev).stop(0), "\n")
		if got := strings.Join(strings.Fields(header), " "); !strings.HasSuffix(got, c.columns) || strings.Contains(got, "PEER") {
			t.Errorf("%s: columns %s, want%s", c.dev, got, c.columns)
		}
		tr := start(t, c.dev, "--json", "--op", "write")
		write(t, c.dev, "write_data", "--size", "1MiB", "--bs", "64KiB")
		bios := tr.bios()
		tr.complete()
		if len(bios) != 16 {
			t.Errorf("%s: %d bios, want 16", c.dev, len(bios))
		}
		for _, b := range bios {
			if (b.Queue > 0) != c.requests || (b.Stage(biotrace.StageDevice) > 0) != c.requests || b.Peer != 0 || b.Total <= 0 || b.Comm != "write_data" {
				t.Errorf("%s: %+v", c.dev, b)
			}
		}
	}
}

// A trace that loses events reports the loss by CPU.
func TestLostEventsAreReported(t *testing.T) {
	needs.Test(t, needs.Once)
	null := guest.NullDisk(t, "trace1", map[string]string{"irqmode": "0", "memory_backed": "0"})
	tr := start(t, null, "--json")
	guest.Signal(t, tr.cmd, unix.SIGSTOP)
	// The ring buffer of 4 MiB cannot hold 40,000 events.
	guest.Run(t, "fio", "--name=load", "--filename="+null, "--rw=randread", "--bs=4k", "--io_size=160m", "--size=16m", "--direct=1", "--ioengine=io_uring", "--iodepth=32")
	guest.Signal(t, tr.cmd, unix.SIGCONT)
	shown := -1 // lines; what is still to be read when the trace ends has 2 s
	guest.Eventually(t, time.Minute, "trace has shown all that it has", func() bool {
		before := shown
		shown = strings.Count(tr.stdout.String(), "\n")
		time.Sleep(time.Second)
		return shown > 0 && shown == before
	})
	seen := len(tr.bios())
	if !strings.Contains(tr.stderr.String(), "incomplete") || !strings.Contains(tr.stderr.String(), "on CPU ") {
		t.Errorf("%d bios were traced, but no loss was reported: %s", seen, tr.stderr.String())
	}
	t.Logf("%d bios were traced: %s", seen, tr.stderr.String())
	if strings.Contains(tr.stderr.String(), "took too long at the end") {
		late.Errorf(t, "%d of 40960 bios were shown in time", seen)
	} else if seen < 20000 || seen >= 40960 {
		t.Errorf("%d of 40960 bios were traced", seen)
	}
}

func TestSummaryHasStagesAndHeatMap(t *testing.T) {
	needs.Test(t, needs.Once)
	dev, _ := attach(t, 9965, "")
	tr := start(t, dev, "--summary")
	write(t, dev, "write_data", "--size", "1MiB", "--bs", "16KiB", "--fsync")
	out := tr.stop(0)
	tr.complete()
	for _, stage := range biotrace.Stages() {
		if !strings.Contains(out, fmt.Sprintf("%-12s %-6s %8d %12d %7d", "WRITE", stage, 64, 1<<20, 0)) {
			t.Errorf("no line of stage %v", stage)
		}
	}
	if !strings.Contains(out, "total latency over time") {
		t.Error("no heat map")
	}
	t.Logf("\n%s", out)
}

func TestColumnsAndUsageErrors(t *testing.T) {
	needs.Test(t, needs.Once)
	dev, _ := attach(t, 9966, "")
	tr := start(t, dev, "--columns", "comm,sector,tag,hwqueue,slowest")
	write(t, dev, "write_data", "--size", "8KiB", "--bs", "4KiB")
	if out := tr.stop(0); !strings.HasPrefix(out, "COMM ") || strings.Count(out, "write_data ") != 2 || strings.Count(out, "0x") != 2 {
		t.Errorf("\n%s", out)
	}
	for args, want := range map[string]string{
		"--columns comm,colour":         `column "colour": must be one of`,
		"--op erase":                    "must be one of",
		"--json --summary":              "give one of them",
		"--slow 1s --summary":           "--slow: cannot be combined with",
		"--record /tmp/x":               "name the device",
		"/dev/null":                     "not a block device",
		"/dev/nosuch":                   "no such file",
		dev + " --record /proc/version": "--record does not overwrite files",
	} {
		r := guest.Krpingctl(t, append([]string{"trace"}, strings.Fields(args)...)...)
		if r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("trace %s: exit code %d, stderr %s", args, r.Code, r.Stderr)
		}
	}
}
