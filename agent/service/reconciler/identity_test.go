// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/proc"
)

const (
	uuidA = "aaaaaaaa-e89b-12d3-a456-426614174000"
	uuidB = "bbbbbbbb-e89b-12d3-a456-426614174000"

	pinnedA = attachCommand + ",uuid=" + uuidA
	pinnedB = attachCommand + ",uuid=" + uuidB
)

func (r *rig) targetHas(uuid string, size uint64) {
	r.set(func() {
		r.volume.UUID, r.volume.Size, r.volume.BlockSize, r.volume.Version = uuid, size, 512, min(uint64(len(uuid)), 1)+1
	})
}

// reboots the host: the module has no sessions, and the agent is another one.
func (r *rig) reboots(sessions ...config.Session) {
	r.Helper()
	r.cancel()
	r.Wait()
	r.set(func() { clear(r.module.sessions) })
	r.module.did()
	r.Reconciler = New(r.module, r.array, r.known, r.logger)
	r.ctx, r.cancel = context.WithCancel(r.T.Context())
	r.declare(sessions...)
}

// refused waits and checks that the session is not attached, and that all say why and what to do.
func (r *rig) refused(after time.Duration, texts ...string) {
	r.Helper()
	time.Sleep(after)
	synctest.Wait()
	v, err := r.known.Get("vol0")
	status := r.Status()[0]
	if err != nil || status.State != Refused || status.Attached != 0 && r.module.sessions["vol0"].Name != "" {
		r.Errorf("state %q, %v", status.State, err)
	}
	for _, text := range texts {
		if !strings.Contains(status.Reason, text) || !strings.Contains(v.Refused, text) || !strings.Contains(r.log.String(), text) {
			r.Errorf("no %q in the reason %q, the file %q or the log\n%s", text, status.Reason, v.Refused, r.log.String())
		}
	}
}

func pin(uuid string) func(*config.Session) {
	return func(s *config.Session) { s.Command.UUID = uuid }
}

func takeOver(s *config.Session) { s.Command.TakeOver = true }

// After a reboot, another volume under the same name is refused, and the right one is attached as soon as
// the target has it again.
func TestAnotherVolumeIsRefusedAfterAReboot(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(0, Attached, attachCommand)
		r.reboots(declared())
		r.wants(2*time.Second, Attached, pinnedA)

		r.targetHas(uuidB, 1<<30) // as large, but empty
		r.set(func() { r.reasons = []string{"the target has another volume: its UUID is B, not A"} })
		r.reboots(declared())
		r.refused(time.Hour, "its UUID is B", uuidA, "krpingctl agent --forget vol0", "since 2000-01-01")
		if n := strings.Count(r.log.String(), `"level":"error"`); n != 1 {
			t.Errorf("%d errors were logged about one refusal:\n%s", n, r.log.String())
		}
		for _, c := range r.module.did() {
			if c != pinnedA {
				t.Errorf("did %s", c)
			}
		}
		r.declare() // what is not declared is not refused either, but still known
		r.wants(time.Second, "")
		if v, err := r.known.Get("vol0"); err != nil || v.Refused != "" || v.UUID != uuidA {
			t.Errorf("%+v, %v", v, err)
		}
		r.declare(declared())
		r.wants(0, Refused, pinnedA)
		r.targetHas(uuidA, 1<<30)
		r.wants(31*time.Second, Attached, pinnedA)
		if v, err := r.known.Get("vol0"); err != nil || v.Refused != "" || r.Status()[0].Reason != "" {
			t.Errorf("still refused: %+v, %v, %q", v, err, r.Status()[0].Reason)
		}
	})
}

func TestRefusedVolumeIsForgotten(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.targetHas(uuidB, 1<<30)
		r.reboots(declared())
		r.refused(time.Hour)
		r.module.did()
		if known, err := r.known.Forget("vol0"); err != nil || !known {
			t.Fatal(known, err)
		}
		r.wants(31*time.Second, Attached, attachCommand)
		r.reboots(declared())
		r.wants(2*time.Second, Attached, pinnedB)
	})
}

// What krping.yaml says wins over what is remembered, and is remembered.
func TestPin(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.declare(declared(pin(uuidA)))
		r.wants(time.Minute, Attached) // it is the same volume: nothing to do
		r.declare(declared(pin(uuidB)))
		r.wants(400*time.Millisecond, Refused, stopCommand, pinnedB)
		r.refused(0, "correct uuid in krping.yaml", uuidB)
		r.targetHas(uuidB, 1<<20)
		r.wants(31*time.Second, Attached, pinnedB)
		r.declare(declared())
		r.reboots(declared())
		r.wants(2*time.Second, Attached, pinnedB)
	})
}

// A session that failed is attached again only to the volume that it had.
func TestFailedSessionFindsAnotherVolume(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.targetHas(uuidB, 1<<30)
		r.becomes("vol0", failed)
		r.wants(1200*time.Millisecond, Refused, stopCommand, pinnedA)
		r.refused(0)

		// Nor is one that a target of version 1 does not identify.
		r.targetHas("", 1<<30)
		r.refused(time.Hour, "protocol not supported")
	})
}

// A memory that cannot be read may have known another volume: only what is pinned is attached.
func TestBrokenMemory(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.breakMemory()
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Refused)
		if reason := r.Status()[0].Reason; !strings.Contains(reason, "cannot be told") || !strings.Contains(reason, "--forget vol0") {
			r.Errorf("reason %q", reason)
		}
		r.declare(declared(pin(uuidA)))
		r.wants(31*time.Second, Attached, pinnedA)
	})
	inBubble(t, func(r *rig) {
		r.breakMemory()
		r.targetHas(uuidA, 1<<30)
		r.declare(declared(always))
		r.wants(2*time.Second, Attached, attachCommand)
	})
}

// breakMemory makes the file of known volumes unreadable.
func (r *rig) breakMemory() {
	r.Helper()
	if err := os.RemoveAll(r.path); err != nil {
		r.Fatal(err)
	}
	if err := os.Mkdir(r.path, 0o755); err != nil { // no file can have its name
		r.Fatal(err)
	}
}

// A volume that cannot be remembered when it is attached is remembered later.
func TestMemoryIsMended(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.breakMemory()
		r.declare(declared(always))
		r.wants(2*time.Second, Attached, attachCommand)
		if err := os.Remove(r.path); err != nil {
			t.Fatal(err)
		}
		r.wants(time.Hour, Attached)
		if v, err := r.known.Get("vol0"); err != nil || v.UUID != uuidA {
			t.Errorf("%+v, %v", v, err)
		}
		if n := strings.Count(r.log.String(), "another volume may not be noticed"); n < 1 || n > 2 { // one of reading, one of writing
			t.Errorf("%d complaints", n)
		}
	})
}

// The memory is gone: what the failed session had still counts.
func TestFailedSessionWithoutMemory(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.breakMemory()
		r.targetHas(uuidB, 1<<30)
		r.becomes("vol0", failed)
		r.wants(1200*time.Millisecond, Refused, stopCommand, pinnedA)
		if !strings.Contains(r.log.String(), "another volume may not be noticed after a restart") {
			r.Errorf("log:\n%s", r.log.String())
		}
	})
}

// Version 1 of the protocol tells the size only.
func TestVolumeOfAnotherSizeWithVersion1(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas("", 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.becomes("vol0", failed)
		r.wants(2*time.Second, Attached, stopCommand, attachCommand)
		r.targetHas("", 1<<20)
		r.becomes("vol0", failed)
		r.wants(time.Hour, Refused, stopCommand, attachCommand, stopCommand)
		r.refused(0, "1048576 bytes in blocks of 512, the one seen last had 1073741824", "--forget vol0")
		r.reboots(declared())
		r.wants(time.Hour, Refused, attachCommand, stopCommand)
		if _, err := r.known.Forget("vol0"); err != nil {
			t.Fatal(err)
		}
		r.wants(2*time.Second, Attached, attachCommand)
		r.declare(declared(always))
		r.targetHas("", 1<<30)
		r.becomes("vol0", failed)
		r.wants(2*time.Second, Attached, stopCommand, attachCommand)
	})
}

// A volume in memory is empty when its target starts again, whatever its UUID is.
func TestVolatileVolume(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.set(func() { r.volume.Volatile = true })
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.becomes("vol0", failed)
		r.wants(time.Hour, Lost)
		r.logs(`"level":"error"`, 1)
		if s := r.Status()[0]; !strings.Contains(s.Reason, "keeps the volume in memory only") {
			t.Errorf("%+v", s)
		}

		r.targetHas(uuidB, 1<<30)
		r.set(func() { delete(r.module.sessions, "vol0") }) // krpingctl stop
		r.wants(2*time.Second, Attached, attachCommand)

		r.targetHas(uuidA, 1<<30)
		r.reboots(declared())
		r.wants(0, Refused, pinnedB)
		r.declare(declared(always))
		r.wants(time.Second, Attached, attachCommand)
		r.targetHas(uuidB, 1<<30)
		r.becomes("vol0", failed)
		r.wants(2*time.Second, Attached, stopCommand, attachCommand)
	})
}

// Another process has attached another volume: it is left alone, but does not become the expected one.
func TestAnotherVolumeAttachedByHand(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared())
		r.wants(2*time.Second, Attached, attachCommand)
		r.reboots()
		is := proc.Session{Name: "vol0", Role: "client", Mode: "remote", State: "live", Peer: "10.0.0.1:9999", Size: 1 << 30, BlockSize: 512, UUID: uuidB}
		r.set(func() { r.module.sessions["vol0"] = is })
		r.declare(declared())
		r.wants(time.Hour, Attached)
		r.logs("attached to another volume than the expected one", 1)
		r.reboots(declared())
		r.wants(2*time.Second, Attached, pinnedA)
	})
}

// The client that has failed, perhaps because another one has taken the volume over, does not take it
// over in turn.
func TestTakeOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.targetHas(uuidA, 1<<30)
		r.declare(declared(takeOver))
		r.wants(2*time.Second, Attached, attachCommand+",take_over")
		r.set(func() { r.attach = unix.EBUSY })
		r.becomes("vol0", failed)
		r.wants(1200*time.Millisecond, Busy, stopCommand, pinnedA)
		r.set(func() { r.attach = 0 })
		r.wants(31*time.Second, Attached, pinnedA)
		r.reboots(declared(takeOver))
		r.wants(2*time.Second, Attached, pinnedA+",take_over")
	})
}

func TestVolumeInUse(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.set(func() { r.attach, r.reasons = unix.EBUSY, []string{"another client, 10.0.0.3, writes to the volume"} })
		r.declare(declared())
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := r.Status()[0]; s.State != Busy || !strings.Contains(s.Reason, "10.0.0.3") {
			t.Errorf("%+v", s)
		}
		r.module.did()
		r.set(func() { r.attach = 0 })
		r.wants(31*time.Second, Attached, attachCommand)
	})
}
