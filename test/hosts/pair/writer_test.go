// SPDX-License-Identifier: Apache-2.0

//go:build lab

package pair

import (
	"strings"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/lab"
)

// Both hosts want to write to a volume: the target's own host attaches it first.
func testOneWriter(h *pair) {
	at := func(port string) string { return " --addr " + h.storage.Addr() + " --port " + port + " --block vol2" }
	h.T.Run("module", func(t *testing.T) {
		h := h.in(t)
		h.Sh(h.storage, "krpingctl server"+at("9910")+" --backing ram:16M")
		h.oneWriter(t, "krpingctl client"+at("9910"))
		h.Sh(h.storage, "krpingctl stop --target vol2")
	})
	h.T.Run("bridge", func(t *testing.T) {
		h := h.in(t)
		h.Spawn(h.storage, "krping-bridge --listen "+h.storage.Addr()+":9911 --name vol2 --store mem: --size 16MiB >/run/writer.log 2>&1")
		h.Eventually(20*time.Second, "krping-bridge listens", func() bool {
			_, err := h.Try(h.storage, "grep -q listening /run/writer.log")
			return err == nil
		})
		h.oneWriter(t, "krpingctl client"+at("9911"))
	})
}

// in returns the pair for a subtest.
func (h *pair) in(t *testing.T) *pair {
	return &pair{&hosts.Hosts{T: t, Lab: h.Lab}, h.storage, h.client}
}

func (h *pair) oneWriter(t *testing.T, attach string) {
	first, second := h.storage, h.client
	dev := strings.TrimSpace(h.Sh(first, attach))
	h.Sh(first, "krpingctl write "+dev+" --size 1MiB --direct --seed 1")

	out, err := h.Try(second, attach)
	if err == nil || !strings.Contains(out, first.Addr()) || !strings.Contains(out, "take") {
		t.Errorf("a second writer: %v, want a refusal that names %s and the way out\n%s", err, first.Addr(), out)
	}
	reader := strings.TrimSpace(h.Sh(second, attach+" --read-only"))
	h.Sh(second, "krpingctl verify "+reader+" --size 1MiB --seed 1 && test $(blockdev --getro "+reader+") = 1 && krpingctl stop vol2")
	if out, err := h.Try(second, attach+" --take-over --uuid 123e4567-e89b-12d3-a456-426614174000"); err == nil {
		t.Errorf("took over another volume than the one it expects:\n%s", out)
	}
	h.Sh(first, "krpingctl write "+dev+" --size 1MiB --direct --seed 2")
	h.Eventually(20*time.Second, "the writer is live after others were refused", func() bool { return h.state(first) == "live" })

	taken := strings.TrimSpace(h.Sh(second, attach+" --take-over"))
	h.Sh(second, "krpingctl verify "+taken+" --size 1MiB --seed 2 && krpingctl write "+taken+" --size 1MiB --direct --seed 3")
	h.Eventually(20*time.Second, "the first writer's session fails", func() bool { return h.state(first) == "failed" })
	if out, err := h.Try(first, "krpingctl write "+dev+" --size 1MiB --direct --seed 4"); err == nil {
		t.Errorf("a writer that was replaced can still write:\n%s", out)
	}
	if log := h.Sh(first, "dmesg"); !strings.Contains(log, "another client, "+second.Addr()+", has taken the volume") {
		t.Errorf("the log of the writer that was replaced does not say who did: %s", log[max(0, len(log)-2000):])
	}
	h.Sh(first, "krpingctl stop vol2")
	if out, err := h.Try(first, attach); err == nil || !strings.Contains(out, second.Addr()) {
		t.Errorf("the first writer again: %v, want a refusal that names %s\n%s", err, second.Addr(), out)
	}
	h.Sh(second, "krpingctl stop vol2")
	dev = strings.TrimSpace(h.Sh(first, attach)) // at once: the second one has said that it ends
	h.Sh(first, "krpingctl verify "+dev+" --size 1MiB --seed 3 && krpingctl stop vol2")
}

// state returns the state of vol2's session.
func (h *pair) state(vm *lab.VM) string {
	for _, line := range strings.Split(h.Sh(vm, "cat /proc/krping_sessions"), "\n") {
		if !strings.Contains(line, " name=vol2 role=client ") {
			continue
		}
		_, rest, _ := strings.Cut(line, " state=")
		state, _, _ := strings.Cut(rest, " ")
		return state
	}
	return "gone"
}
