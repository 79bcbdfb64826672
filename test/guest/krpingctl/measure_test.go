// SPDX-License-Identifier: Apache-2.0

//go:build lab

package krpingctl

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/measure"
	"krping/proc"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

func report(t *testing.T, text string) measure.Report {
	t.Helper()
	var r measure.Report
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return r
}

// Each kind of measurement, with krpingctl on both sides.
func TestMeasurements(t *testing.T) {
	guest.NoThreads(t)
	addr := guest.Addr(t)
	for i, tc := range []struct {
		test  string
		both  []string
		timed bool
	}{
		{"--rlat", []string{"--size", "4096"}, true},
		{"--rlat", []string{"--poll", "--size", "1"}, true},
		{"--wlat", []string{"--size", "64"}, true},
		{"--bw", []string{"--size", "65536", "--txdepth", "16"}, false},
		{"--bw", []string{"--size", "4KiB", "--duplex", "--qps", "2"}, false},
		{"--fr", nil, true},
	} {
		args := append([]string{"--addr", addr, "--port", fmt.Sprint(9910 + i), tc.test}, tc.both...)
		t.Run(strings.Join(args[4:], " "), func(t *testing.T) {
			done := make(chan guest.Result, 1)
			go func() { done <- guest.Krpingctl(t, append([]string{"server"}, args...)...) }()
			guest.Eventually(t, 20*time.Second, "the server listens", func() bool {
				return slices.ContainsFunc(guest.Threads(t), func(line string) bool { return strings.HasSuffix(line, " listen") })
			})
			r := report(t, guest.MustKrpingctl(t, append([]string{"client", "--count", "300", "--json"}, args...)...))
			if r.Version != measure.Version || "--"+r.Test != tc.test || r.Device != guest.Device(t) || r.Operations != 300*uint64(r.Connections) || r.OpsPerSecond <= 0 {
				t.Errorf("%+v", r)
			}
			if l := r.Latency; (l != nil) != tc.timed {
				t.Errorf("latency %+v", l)
			} else if l != nil && !(l.Count == 300 && 0 < l.Min && l.Min <= l.P50 && l.P50 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max) {
				t.Errorf("latency out of order: %+v", *l)
			}
			if server := <-done; server.Code != 0 {
				t.Errorf("server: exit code %d\n%s", server.Code, server.Stderr)
			}
		})
	}
}

// The bridge, which does not need the module, serves many clients at once on one port.
func TestBridgeAsPingServer(t *testing.T) {
	guest.StartPingBridge(t, 9930)
	to := []string{"client", "--addr", guest.Addr(t), "--port", "9930"}
	run := func(more ...string) string { return guest.MustKrpingctl(t, append(to, more...)...) }
	if out := run("--count", "50", "--size", "9000", "--validate"); !strings.HasPrefix(out, "50 pings of 9000 bytes, all data valid\n") {
		t.Errorf("pings: %s", out)
	}
	run("--count", "20", "--validate", "--mem-mode", "reg", "--server-inv")
	if r := report(t, run("--threads", "20", "--one-port", "--count", "20", "--json")); r.Operations != 400 || r.Threads != 20 {
		t.Errorf("20 threads: %+v", r)
	}
	if r := report(t, run("--rlat", "--duration", "500ms", "--json")); r.Latency == nil || r.ElapsedNs < 4e8 {
		t.Errorf("half a second of rlat: %+v", r)
	} else if r.ElapsedNs > 2e9 {
		late.Errorf(t, "half a second of rlat: %+v", r)
	}
	if r := report(t, run("--bw", "--qps", "3", "--duration", "500ms", "--json")); r.Connections != 3 || r.GbitPerSecond <= 0 {
		t.Errorf("bandwidth: %+v", r)
	}
	guest.Run(t, "rping", "-c", "-a", guest.Addr(t), "-p", "9930", "-C", "100", "-S", "4000", "-V")
	for _, test := range [][]string{{"--wlat"}, {"--bw", "--duplex"}, {"--size", "2MiB"}} {
		r := guest.Krpingctl(t, append(append(to, "--count", "1"), test...)...)
		if test[0] != "--size" && (r.Code != 5 || !strings.Contains(r.Stderr, "the server")) {
			t.Errorf("%v: exit code %d, want 5 and the reason\n%s", test, r.Code, r.Stderr)
		}
		if test[0] == "--size" && r.Code != 0 {
			t.Errorf("the largest ping: exit code %d\n%s", r.Code, r.Stderr)
		}
	}
}

func TestInterruptedMeasurementPrintsResult(t *testing.T) {
	guest.StartPingBridge(t, 9931)
	cmd := exec.Command(guest.Binary(t, "krpingctl"), "client", "--addr", guest.Addr(t), "--port", "9931", "--csv")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, 20*time.Second, "pings are sent", func() bool {
		for _, thread := range guest.Threads(t) {
			if fields := strings.Fields(thread); len(fields) == 9 && len(fields[2]) > 1 {
				return true
			}
		}
		return false
	})
	_ = cmd.Process.Signal(unix.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if rows, err := csv.NewReader(&out).ReadAll(); err != nil || len(rows) != 2 || rows[1][0] != "ping" {
		t.Errorf("results %q, %v", rows, err)
	}
}

// The Go runtime may send SIGURG to its threads at any time. That must not end a command.
func TestSIGURGDoesNotEndCommands(t *testing.T) {
	guest.StartPingBridge(t, 9933)
	fs, err := proc.NewFS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	r, err := fs.Start(t.Context(), proc.Command{Role: proc.Client, Addr: netip.MustParseAddr(guest.Addr(t)), Port: 9933})
	if err != nil {
		t.Fatal(err)
	}
	ops := func() uint64 {
		result, _ := r.Result()
		return result.Ops
	}
	guest.Eventually(t, 20*time.Second, "the client pings", func() bool { return ops() > 0 })
	for range 20 {
		if err := unix.Tgkill(os.Getpid(), r.Thread(), unix.SIGURG); err != nil {
			t.Fatal(err)
		}
	}
	before := ops()
	guest.Eventually(t, 20*time.Second, "the client still pings", func() bool { return ops() > before+10 })
	r.Stop()
	if _, err := r.Wait(); !errors.Is(err, unix.EINTR) {
		t.Errorf("stopped: %v, want EINTR", err)
	}
	if result, err := r.Result(); err != nil || result.State != "done" || result.Ops <= before {
		t.Errorf("the result after the stop: %+v, %v", result, err)
	}
}

func TestSweepWritesTableAndPlots(t *testing.T) {
	guest.StartPingBridge(t, 9932)
	dir := filepath.Join(t.TempDir(), "new", "sweep")
	out := guest.MustKrpingctl(t, "sweep", "--addr", guest.Addr(t), "--port", "9932", "--sizes", "64,4KiB", "--threads", "1,2", "--connections", "1,4", "--duration", "300ms", "--out", dir)
	if n := strings.Count(out, " bw "); n != 8 {
		t.Errorf("the table has %d points, want 8:\n%s", n, out)
	}
	file, err := os.Open(filepath.Join(dir, "sweep.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if rows, err := csv.NewReader(file).ReadAll(); err != nil || len(rows) != 9 {
		t.Errorf("sweep.csv has %d rows, %v, want a header and 8", len(rows), err)
	}
	for name, want := range map[string]string{"sweep.svg": "<svg", "sweep.html": "4096 bytes, 4 connections per thread"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Contains(data, []byte(want)) {
			t.Errorf("%s has no %q: %v", name, want, err)
		}
	}
	if r := guest.Krpingctl(t, "sweep", "--addr", guest.Addr(t), "--threads", "4097"); r.Code != 2 || !strings.Contains(r.Stderr, "must be 1 to 4096") {
		t.Errorf("4097 threads: exit code %d\n%s", r.Code, r.Stderr)
	}
	if r := guest.Krpingctl(t, "sweep", "--addr", guest.Addr(t), "--port", "9", "--duration", "200ms", "--out", dir); r.Code != 5 {
		t.Errorf("no server: exit code %d, want 5\n%s", r.Code, r.Stderr)
	}
}
