// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"strconv"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// Large commands that are submitted together share messages.
func TestLargeCommandsShareMessages(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		_, dev := attach(t, target, 16*mib, targets.Config{}, ",queues=1")
		count := func(key string) int {
			t.Helper()
			n, err := strconv.Atoi(guest.Session(t, "vol0")[key])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		commands := func() int { return count("reads") + count("writes") }
		for i, load := range [][]string{{"--rw=randwrite"}, {"--rw=randread", "--verify=0"}} {
			before, messages, stalls := commands(), count("messages"), count("stalls")
			guest.Fio(t, dev, append(load, "--bs=64k", "--size=8M", "--iodepth=32", "--iodepth_batch=32", "--iodepth_batch_complete_min=32")...)
			n := commands() - before
			messages = count("messages") - messages
			t.Logf("%v: %d commands in %d messages", load, n, messages)
			if n < 100 || messages > n/4 {
				t.Errorf("%v: %d commands in %d messages: want 100 commands or more, and a quarter as many messages or fewer", load, n, messages)
			}
			if n := count("stalls") - stalls; i > 0 && n != 0 { // the first commands have waited for more receives
				t.Errorf("%v: %d stalls, want 0", load, n)
			}
		}
		guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0")
	})
}
