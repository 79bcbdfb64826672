// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package experiments runs each experiment of krpingctl in a small form between two hosts, and holds its result
// where counts decide it, not times.
package experiments

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/lab"
)

const port = 9900

// site is two hosts, with krping-bridge on the first.
type site struct {
	*lab.Lab
	bridge *lab.Process
}

func (s *site) server() *lab.VM { return s.VM(0) }
func (s *site) client() *lab.VM { return s.VM(1) }

// of returns the hosts for a test.
func (s *site) of(t *testing.T) *hosts.Hosts { return &hosts.Hosts{T: t, Lab: s.Lab} }

// start starts the bridge, in the place of one that runs.
func (s *site) start(t *testing.T, args string) {
	t.Helper()
	h := s.of(t)
	if s.bridge != nil {
		h.Sh(s.server(), "kill $(pidof krping-bridge); rm /run/bridge.log")
		_ = s.bridge.Wait(t.Context()) // it was killed
	}
	s.bridge = h.Spawn(s.server(), fmt.Sprintf("krping-bridge --ping %s:%d %s >/run/bridge.log 2>&1", s.server().Addr(), port, args))
	h.Eventually(20*time.Second, "the bridge listens", func() bool {
		out, _ := h.Try(s.server(), "cat /run/bridge.log")
		return strings.Contains(out, "answering pings")
	})
}

// row is a line of a CSV by the names of its columns.
type row map[string]string

func (r row) number(t *testing.T, name string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(r[name], 64)
	if err != nil {
		t.Fatalf("column %s: %v in %v", name, err, r)
	}
	return n
}

// per returns a count for each operation.
func (r row) per(t *testing.T, name string) float64 {
	t.Helper()
	return r.number(t, name) / r.number(t, "operations")
}

// command returns a command line of krpingctl that writes its files to /run.
func (s *site) command(what, args string) string {
	return fmt.Sprintf("krpingctl %s --quiet --addr %s --port %d --duration 1s --out /run %s", what, s.server().Addr(), port, args)
}

// run runs an experiment, and returns its points. It must have printed and written what it promises.
func (s *site) run(t *testing.T, name, args string) []row {
	t.Helper()
	h := s.of(t)
	out := h.Sh(s.client(), s.command("experiment "+name, args))
	t.Log("\n" + out)
	if !strings.Contains(out, "wrote "+name+".csv, ") || !strings.HasSuffix(out, ".\n") {
		t.Errorf("it does not say what it wrote and shows:\n%s", out)
	}
	h.Sh(s.client(), fmt.Sprintf("grep -q '</svg>' /run/%[1]s.svg && grep -q '</svg>' /run/%[1]s.html", name))
	return parse(t, h.Sh(s.client(), "cat /run/"+name+".csv"))
}

func parse(t *testing.T, text string) []row {
	t.Helper()
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(lines) < 2 {
		t.Fatalf("%v in\n%s", err, text)
	}
	var rows []row
	for _, line := range lines[1:] {
		r := row{}
		for i, name := range lines[0] {
			r[name] = line[i]
		}
		rows = append(rows, r)
	}
	return rows
}

// find returns the row with a value in a column.
func find(t *testing.T, rows []row, name, value string) row {
	t.Helper()
	i := slices.IndexFunc(rows, func(r row) bool { return r[name] == value })
	if i < 0 {
		t.Fatalf("no point has %s %s: %v", name, value, rows)
	}
	return rows[i]
}

func TestExperiments(t *testing.T) {
	s := &site{Lab: hosts.Boot(t).Lab}
	s.start(t, "")
	t.Run("threads", s.threads)
	t.Run("mtu", s.mtu)
	t.Run("moderation", s.moderation)
	t.Run("polling", s.polling)
	t.Run("types", s.types)
	t.Run("srq", s.srq)
	t.Run("limit", s.limit)
}

func (s *site) threads(t *testing.T) {
	rows := s.run(t, "threads", "--threads 1,2 --connections 1,40")
	if len(rows) != 4 {
		t.Errorf("%d points, want 4", len(rows))
	}
	if r := find(t, rows, "connections", "40"); r.number(t, "gbit_per_second") <= 0 || r["threads"] != "1" {
		t.Errorf("40 connections: %v", r)
	}
	find(t, rows, "threads", "2")
}

// A message of 4096 bytes takes 16 packets of 256 bytes, or 4 of 1024. Some are sent again, and others belong to
// the connection.
func (s *site) mtu(t *testing.T) {
	rows := s.run(t, "mtu", "--sizes 4096 --mtu 256,1024")
	small, large := find(t, rows, "mtu", "256").per(t, "packets"), find(t, rows, "mtu", "1024").per(t, "packets")
	if small < 16 || large < 4 || small < 2*large {
		t.Errorf("%.2f packets a message with mtu 256, %.2f with 1024; want 16 and 4", small, large)
	}
}

func (s *site) moderation(t *testing.T) {
	rows := s.run(t, "moderation", "--signal 1,16")
	const control = 40 // completions of the control connection, at most
	for signal, r := range map[float64]row{1: find(t, rows, "signal", "1"), 16: find(t, rows, "signal", "16")} {
		messages, completions := r.number(t, "operations"), r.number(t, "completions")
		if completions < messages/signal || completions > messages/signal+signal+control {
			t.Errorf("%v completions of %v messages with signal %v", completions, messages, signal)
		}
	}
}

// How much less CPU time events take is a matter of time, so of it only the table is checked.
func (s *site) polling(t *testing.T) {
	rows := s.run(t, "polling", "--sizes 64")
	if len(rows) != 4 {
		t.Errorf("%d points, want bandwidth and latency with and without polling", len(rows))
	}
	for _, r := range rows {
		if cpu, elapsed := r.number(t, "cpu_ns"), r.number(t, "elapsed_ns"); cpu <= 0 || cpu > 2*elapsed {
			t.Errorf("measure %s, poll %s: %v ns of CPU time in %v ns", r["measure"], r["poll"], cpu, elapsed)
		}
	}
}

// On a network that loses packets, only reliable connections lose no message.
func (s *site) types(t *testing.T) {
	h := s.of(t)
	h.Sh(s.client(), "modprobe sch_netem && tc qdisc add dev eth0 root netem loss 2%")
	rows := s.run(t, "types", "--sizes 256")
	h.Sh(s.client(), "tc qdisc del dev eth0 root")
	for _, qp := range []string{"rc", "uc", "ud"} {
		r := find(t, rows, "qp", qp)
		sent, lost := r.number(t, "sent"), r.number(t, "lost")
		if sent == 0 || lost >= sent || (lost > 0) != (qp != "rc") {
			t.Errorf("%s: of %v messages %v were lost", qp, sent, lost)
		}
	}
}

// A thousand queue pairs work against the bridge, and with a shared receive queue take less of its memory.
func (s *site) srq(t *testing.T) {
	h := s.of(t)
	peak := func() float64 { // bytes that the bridge had at most
		n, err := strconv.ParseFloat(strings.TrimSpace(h.Sh(s.server(), "awk '/VmHWM/ {print $2}' /proc/$(pidof krping-bridge)/status")), 64)
		if err != nil {
			t.Fatal(err)
		}
		return 1024 * n
	}
	s.start(t, "")
	h.Sh(s.client(), s.command("sweep", "--verb send --validate --qp uc --sizes 1024 --threads 1 --connections 1000 --srq --rxdepth 1024"))
	less := peak()
	// The places of its connections are free when their queue pairs are.
	h.Eventually(30*time.Second, "the bridge has freed its queue pairs", func() bool {
		_, err := h.Try(s.server(), "rdma resource show qp | grep -q 'comm krping-bridge'")
		return err != nil
	})
	rows := s.run(t, "srq", "--connections 1000 --qp uc")
	own, shared := find(t, rows, "srq", "off"), find(t, rows, "srq", "on")
	if own.number(t, "receives") != 64000 || shared.number(t, "receives") != 1024 || own.number(t, "operations") == 0 || shared.number(t, "operations") == 0 {
		t.Errorf("without a shared receive queue: %v; with one: %v", own, shared)
	}
	saved := own.number(t, "receive_bytes") - shared.number(t, "receive_bytes")
	if more := peak(); more-less < 0.9*saved {
		t.Errorf("the bridge takes %.0f bytes with a shared receive queue and %.0f without, want %.0f more", less, more, saved)
	}
}

// A limit of the peer is told before anything is measured, with the option that raises it.
func (s *site) limit(t *testing.T) {
	h := s.of(t)
	s.start(t, "--ping-max-connections 8")
	for args, want := range map[string]string{
		"sweep --connections 2,8 --threads 1,2":    "--ping-max-connections 16",
		"experiment srq --connections 1,8 --qp uc": "--ping-max-connections 9",
	} {
		out, err := h.Try(s.client(), s.command(args, ""))
		if err == nil || !strings.Contains(out, want) || !strings.Contains(out, "nothing was measured") {
			t.Errorf("%s: %v, want %s:\n%s", args, err, want, out)
		}
	}
}
