// SPDX-License-Identifier: Apache-2.0

//go:build lab

package trace

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// traced returns a function that returns what the tracepoints of a name, as below events, have written from now on.
func traced(t *testing.T, name string) (log func() string) {
	t.Helper()
	const trace = "/sys/kernel/tracing/trace"
	enable := "/sys/kernel/tracing/events/" + name + "/enable"
	set := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	set(trace, "")
	set(enable, "1")
	t.Cleanup(func() { set(enable, "0") })
	return func() string {
		t.Helper()
		text, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestTracepoints(t *testing.T) {
	path, _ := attach(t, guest.NextPort(), "")
	dev := guest.OpenDirect(t, path)
	log := traced(t, "krping")
	data := guest.Aligned(t, 65536)
	copy(data, "krping")
	if _, err := dev.WriteAt(data[:4096], 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := dev.WriteAt(data, 65536); err != nil {
		t.Fatal(err)
	}
	if _, err := dev.ReadAt(data, 65536); err != nil {
		t.Fatal(err)
	}
	text := log()
	for _, want := range []string{
		"krping_cmd_post: ", "op=WRITE flags=INLINE sector=16 bytes=4096 crc=0x", "op=WRITE flags= sector=128 bytes=65536",
		"krping_cmd_done: ", "op=READ flags= sector=128 bytes=65536", "status=0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the trace has no %q:\n%s", want, text)
		}
	}
}

// A tap whose target is suspended drops copies once its queue is full.
func TestTapDropIsTraced(t *testing.T) {
	path, bridge := attach(t, guest.NextPort(), ",mode=tap,backing=ram:16M,op=write,heartbeat=0")
	dev := guest.OpenDirect(t, path)
	log := traced(t, "krping")
	guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
	data := guest.Aligned(t, 262144)
	offset := int64(0)
	guest.Eventually(t, 20*time.Second, "a copy is dropped", func() bool {
		if _, err := dev.WriteAt(data, offset); err != nil {
			t.Fatal(err)
		}
		offset = (offset + int64(len(data))) % volume
		return guest.Session(t, "vol0")["drops_full"] != "0"
	})
	if text := log(); !strings.Contains(text, "bytes=262144 reason=full") {
		t.Errorf("the trace has no drop:\n%s", text)
	}
	guest.Signal(t, bridge.Cmd, unix.SIGCONT)
}

// All slots of bios in flight are read, by a few calls. It took one for each of 8192.
func TestTopMakesFewCalls(t *testing.T) {
	log := traced(t, "syscalls/sys_enter_bpf")
	guest.MustKrpingctl(t, "top", "--once")
	_, written, _ := strings.Cut(log(), "entries-written: ") // in the buffer and in all, before the events
	var kept, calls int
	if _, err := fmt.Sscanf(written, "%d/%d", &kept, &calls); err != nil {
		t.Fatalf("%v:\n%.500s", err, written)
	}
	if calls < 30 || calls > 500 {
		t.Errorf("top makes %d calls of bpf, want 30 to 500", calls)
	}
}
