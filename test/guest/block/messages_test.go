// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// Large commands that are submitted together share messages, and each has a memory region of its own.
func TestLargeCommandsShareMessages(t *testing.T) {
	needs.Test(t, needs.RoCE, needs.StockKernel) // counts the calls of a function of Soft-RoCE
	targets.Each(t, func(t *testing.T, target targets.Target) {
		_, dev := attach(t, target, 16*mib, targets.Config{}, ",queues=1")
		registrations := countRegistrations(t)
		count := func(key string) int {
			t.Helper()
			n, err := strconv.Atoi(guest.Session(t, "vol0")[key])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		commands := func() int { return count("reads") + count("writes") }
		for _, load := range [][]string{{"--rw=randwrite"}, {"--rw=randread", "--verify=0"}} {
			before, messages := commands(), count("messages")
			registered := registrations()
			guest.Fio(t, dev, append(load, "--bs=64k", "--size=8M", "--iodepth=32", "--iodepth_batch=32", "--iodepth_batch_complete_min=32")...)
			n := commands() - before
			messages = count("messages") - messages
			t.Logf("%v: %d commands in %d messages", load, n, messages)
			if n < 100 || messages > n/4 {
				t.Errorf("%v: %d commands in %d messages: want 100 commands or more, and a quarter as many messages or fewer", load, n, messages)
			}
			if registered = registrations() - registered; registered != n && count("retries") == 0 {
				t.Errorf("%v: %d commands with %d registrations", load, n, registered)
			}
		}
		guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "stalls", "0")
	})
}

// countRegistrations returns a function that tells how many memory regions Soft-RoCE has registered by work requests.
func countRegistrations(t *testing.T) func() int {
	t.Helper()
	const tracing, probe = "/sys/kernel/tracing/", "krping_regs"
	add := func(line string) error {
		f, err := os.OpenFile(tracing+"kprobe_events", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(line)
		return errors.Join(err, f.Close())
	}
	if err := add("p:" + probe + " rxe_reg_fast_mr"); err != nil {
		t.Fatal(err)
	}
	enable := func(value string) {
		t.Helper()
		if err := os.WriteFile(tracing+"events/kprobes/"+probe+"/enable", []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	enable("1")
	t.Cleanup(func() {
		enable("0")
		if err := add("-:" + probe); err != nil {
			t.Error(err)
		}
	})
	return func() int {
		t.Helper()
		profile, err := os.ReadFile(tracing + "kprobe_profile")
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(profile)) // name, hits, misses
		if len(fields) != 3 || fields[0] != probe || fields[2] != "0" {
			t.Fatalf("kprobe_profile: %q", profile)
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}
