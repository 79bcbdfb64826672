// SPDX-License-Identifier: Apache-2.0

//go:build lab

package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/agent/stats/sampler"
	"krping/test/guest/internal/guest"
)

// The agent attaches the configured sessions, and its metrics count their I/O.
func TestMetricsCountIO(t *testing.T) {
	guest.StartBridge(t, 9960, guest.StorePath(t), "32MiB")
	stopAtEnd(t, "vol0")
	declare(t, 9960, map[string]string{"vol0": "    queues: 1\n"})
	a := start(t)
	s := a.attached("vol0")
	dev := guest.OpenDirect(t, "/dev/"+s["dev"])
	if info, err := os.Stat(config.DefaultListen); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v, %v", info, err)
	}
	total := []string{"device=" + s["dev"], "op=WRITE", "stage=total"}
	block := guest.Aligned(t, 4096)
	write := func(n int) {
		t.Helper()
		for i := range n {
			if _, err := dev.WriteAt(block, int64(i)*4096); err != nil {
				t.Fatal(err)
			}
		}
	}
	guest.Eventually(t, guest.TraceStarts, "latencies are measured", func() bool {
		write(1)
		a.scrape()
		return a.find("krping_latency_seconds", total...).GetHistogram().GetSampleCount() > 0
	})
	before := a.find("krping_latency_seconds", total...).GetHistogram()
	bytes, ops := a.value("krping_session_bytes_total", "session=vol0", "op=write"), a.value("krping_session_ops_total", "session=vol0", "op=write")
	const n = 500
	write(n)
	a.scrape()
	after := a.find("krping_latency_seconds", total...).GetHistogram()
	if got := after.GetSampleCount() - before.GetSampleCount(); got != n || after.GetSampleSum() <= before.GetSampleSum() {
		t.Errorf("%d latencies of %d writes, sum %v s", got, n, after.GetSampleSum())
	}
	if after.GetSchema() != 3 || len(after.GetPositiveSpan()) == 0 || len(after.GetBucket()) < 20 {
		t.Errorf("not a native and a classic histogram: %v", after)
	}
	if got := a.value("krping_session_bytes_total", "session=vol0", "op=write") - bytes; got != n*4096 {
		t.Errorf("%v bytes written, want %d", got, n*4096)
	}
	if got := a.value("krping_session_ops_total", "session=vol0", "op=write") - ops; got != n {
		t.Errorf("%v writes, want %d", got, n)
	}
	for _, key := range []string{"reads", "writes", "messages", "reconnects", "size"} {
		want, err := strconv.ParseFloat(guest.Session(t, "vol0")[key], 64)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{
			"reads": a.value("krping_session_ops_total", "session=vol0", "op=read"), "writes": a.value("krping_session_ops_total", "session=vol0", "op=write"),
			"messages": a.value("krping_session_messages_total", "session=vol0"), "reconnects": a.value("krping_session_reconnects_total", "session=vol0"),
			"size": a.value("krping_session_size_bytes", "session=vol0"),
		}[key]
		if got > want || got < want-1 { // a KEEP_ALIVE may be sent between the two reads
			t.Errorf("%s: the metric is %v, the module says %v", key, got, want)
		}
	}
	for _, one := range [][]string{
		{"krping_session_state", "session=vol0", "state=live"}, {"krping_declared_session_state", "session=vol0", "state=attached"},
		{"krping_module_loaded"}, {"krping_latency_up"}, {"krping_rdma_port_up", "device=rxe0", "port=1"}, {"krping_declared_session_attached_total", "session=vol0"},
	} {
		if got := a.value(one[0], one[1:]...); got != 1 {
			t.Errorf("%s: %v, want 1", one, got)
		}
	}
	if a.value("krping_rdma_hw_packets_total", "device=rxe0", "counter=sent_pkts") < n || a.find("krping_module_info").Gauge == nil {
		t.Error("the RDMA device's counter or the module's version is missing")
	}
	for _, m := range a.metric["krping_collector_up"].GetMetric() {
		if m.GetGauge().GetValue() != 1 {
			t.Errorf("not up: %v", m)
		}
	}
	if _, text := a.get("/metrics", ""); !strings.Contains(string(text), `krping_latency_seconds_bucket{device="`+s["dev"]+`",op="WRITE",stage="total",le="64"} `) {
		t.Error("the text has no classic histogram")
	}
	if _, text := a.get("/healthz", ""); string(text) != "ok\n" {
		t.Errorf("healthz: %q", text)
	}
	if kind, text := a.get("/", ""); !strings.HasPrefix(kind, "text/html") || !strings.Contains(string(text), "page.js") {
		t.Errorf("the page is %s: %s", kind, text)
	}
	a.streams(func(s sampler.Sample) bool {
		return len(s.Sessions) == 1 && s.Sessions[0].Name == "vol0" && s.Sessions[0].Write.Ops.Delta > 0 && len(s.Sessions[0].Latencies) > 0
	})
}

// A session is added to the configuration, kept and removed, without disturbing the I/O of another one.
func TestReloadAndKillAgent(t *testing.T) {
	other := t.TempDir() + "/vol1.img"
	guest.CreateStore(t, other, "16MiB")
	guest.StartBridge(t, 9961, guest.StorePath(t), "64MiB", "--volume", "vol1=file:"+other)
	stopAtEnd(t, "vol0", "vol1")
	// Without keep-alives, which a slow host may answer too late under this load.
	vol0, vol1 := "    heartbeat: 0\n", "    mode: tap\n    backing: ram:16M\n"
	declare(t, 9961, map[string]string{"vol0": vol0})
	a := start(t)
	kept := a.attached("vol0")
	load := guest.StartWriting(t, "/dev/"+kept["dev"])
	writes := func() int {
		t.Helper()
		n, err := strconv.Atoi(guest.Session(t, "vol0")["writes"])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	guest.Eventually(t, 20*time.Second, "vol0 is written to", func() bool { return writes() > 0 })

	declare(t, 9961, map[string]string{"vol0": vol0, "vol1": vol1})
	a.reload()
	tap := guest.OpenDirect(t, "/dev/"+a.attached("vol1")["dev"])
	for i := range 10 {
		if _, err := tap.WriteAt(guest.Aligned(t, 4096), int64(i)*4096); err != nil {
			t.Fatal(err)
		}
	}
	guest.Eventually(t, 20*time.Second, "a metric counts the forwarded writes", func() bool {
		a.scrape()
		forwarded := a.value("krping_tap_forwarded_bytes_total", "session=vol1")
		return forwarded >= 10*4096 && guest.Session(t, "vol1")["forwarded_bytes"] == fmt.Sprint(int(forwarded))
	})
	_ = tap.Close()

	text, err := os.ReadFile(config.DefaultPath)
	if err != nil {
		t.Fatal(err)
	}
	configure(t, string(text)+"    port: 70000\nlgo: info\n")
	a.reload()
	a.logs(config.DefaultPath + ":11:5: port is given twice, first on line 8")
	a.logs(config.DefaultPath + `:12:1: unknown key "lgo": did you mean log?`)
	a.logs("refused")
	if out, err := guest.TryRun(guest.Binary(t, "krpingctl"), "agent", "--check"); err == nil || !strings.Contains(out, ":12:1: unknown key") {
		t.Errorf("--check: %v, %s", err, out)
	}
	if guest.Session(t, "vol1") == nil {
		t.Error("an invalid configuration stopped a session")
	}

	// The options of a session in use change: it is not attached again.
	declare(t, 9961, map[string]string{"vol0": vol0 + "    fast_fail: 60\n", "vol1": vol1})
	a.reload()
	a.shows("krping_declared_session_state", "session=vol0", "state=replacing")

	declare(t, 9961, map[string]string{"vol0": vol0})
	a.reload()
	guest.Eventually(t, 20*time.Second, "vol1 is stopped", func() bool { return guest.Session(t, "vol1") == nil })
	a.shows("krping_declared_session_state", "session=vol0", "state=attached")
	if n := a.value("krping_declared_session_attached_total", "session=vol0"); n != 1 {
		t.Errorf("vol0 was attached %v times", n)
	}

	before := writes()
	a.kill()
	if out, err := guest.TryRun(guest.Binary(t, "krpingctl"), "stat"); err != nil {
		t.Errorf("stat after the agent was killed: %v, %s", err, out)
	}
	a = start(t)
	a.logs("already attached")
	a.shows("krping_declared_session_state", "session=vol0", "state=attached")
	guest.Signal(t, a.cmd, unix.SIGTERM)
	a.wantNotify("STOPPING=1")
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if after := writes(); after <= before {
		t.Errorf("%d writes, %d before the agent was killed", after, before)
	}
	load.Stop()
	s := guest.Session(t, "vol0")
	for _, key := range []string{"id", "dev", "state", "reconnects", "errors", "crc_errors", "fast_fail"} {
		if s[key] != kept[key] {
			t.Errorf("%s=%s, was %s", key, s[key], kept[key])
		}
	}
}

// A session that ends unexpectedly is attached again, and the loss of a target is logged.
func TestReattachStoppedSession(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9962, store, "16MiB")
	stopAtEnd(t, "vol0")
	declare(t, 9962, map[string]string{"vol0": "    heartbeat: 1\n"})
	a := start(t)
	a.attached("vol0")
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		t.Fatal(err)
	}
	a.attached("vol0")
	a.shows("krping_declared_session_state", "session=vol0", "state=attached")
	if n := a.value("krping_declared_session_attached_total", "session=vol0"); n != 2 {
		t.Errorf("attached %v times, want 2", n)
	}

	bridge.Kill()
	a.shows("krping_session_state", "session=vol0", "state=reconnecting")
	a.logs("connection lost")
	a.logs("peer=" + bridge.Addr + " ")
	a.logs("session=vol0 source=kernel")
	a.scrape()
	if n := a.value("krping_kernel_messages_total", "subject=vol0", "severity=warning"); n < 1 {
		t.Errorf("%v warnings of vol0 were counted", n)
	}
	guest.StartBridge(t, 9962, store, "16MiB")
	a.shows("krping_session_state", "session=vol0", "state=live")

	// An idle session gets new options.
	declare(t, 9962, map[string]string{"vol0": "    heartbeat: 1\n    fast_fail: 60\n"})
	a.reload()
	guest.Eventually(t, 20*time.Second, "the session has the new options", func() bool { return guest.Session(t, "vol0")["fast_fail"] == "60" })
}

// After a target has lost acknowledged writes, the agent attaches the session again only with reattach: always.
func TestNoReattachAfterLostWrites(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9963, store, "16MiB", "--writeback")
	stopAtEnd(t, "vol0")
	declare(t, 9963, map[string]string{"vol0": "    heartbeat: 1\n"})
	a := start(t)
	s := a.attached("vol0")
	dev, err := os.OpenFile("/dev/"+s["dev"], os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
		t.Fatal(err)
	}
	bridge.Kill()
	guest.StartBridge(t, 9963, store, "16MiB", "--writeback")
	a.shows("krping_declared_session_state", "session=vol0", "state=lost")
	_ = dev.Close() // the flush fails
	time.Sleep(3 * time.Second)
	if state := guest.Session(t, "vol0")["state"]; state != "failed" {
		t.Errorf("state %q, want failed", state)
	}
	a.logs("failed, and data may be lost")

	declare(t, 9963, map[string]string{"vol0": "    heartbeat: 1\n    reattach: always\n"})
	a.reload()
	a.attached("vol0")
}

// The module can be unloaded and loaded while the agent runs. A second agent on a host does not start.
func TestModuleReloadedAndSecondAgent(t *testing.T) {
	configure(t, "")
	a := start(t)
	a.shows("krping_latency_up")
	guest.Run(t, "rmmod", "rdma_krping")
	a.scrape()
	if a.value("krping_module_loaded") != 0 || a.find("krping_module_loaded").Gauge == nil {
		t.Error("the agent does not report that the module is not loaded")
	}
	guest.Run(t, "insmod", guest.Module(t))
	a.shows("krping_module_loaded")
	out, err := guest.TryRun(guest.Binary(t, "krpingctl"), "agent")
	if err == nil || !strings.Contains(out, "another agent is running on this host") {
		t.Errorf("a second agent: %v, %s", err, out)
	}
}
