// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"krping/agent/service/config"
	"krping/agent/service/raid"
	"krping/proc"
)

// array is /dev/md0, which takes a disk back at once, or refuses it.
type array struct {
	mu      sync.Mutex
	member  raid.State
	refuses error
	broken  error // its state cannot be read
	actions []string
}

func (a *array) State(string, string) (raid.State, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.member, a.broken
}

func (a *array) does(action, array, disk string, next raid.State) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.actions = append(a.actions, action+" "+array+" "+disk)
	if a.refuses == nil {
		a.member = next
	}
	return a.refuses
}

func (a *array) Fail(_ context.Context, array, disk string) error {
	return a.does("fail", array, disk, raid.Failed)
}

func (a *array) Remove(_ context.Context, array, disk string) error {
	return a.does("remove", array, disk, raid.Missing)
}

func (a *array) ReAdd(_ context.Context, array, disk string) error {
	return a.does("re-add", array, disk, raid.Recovering)
}

func (a *array) change(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// does returns the actions since the last call.
func (a *array) did() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	actions := a.actions
	a.actions = nil
	return actions
}

const (
	failAction   = "fail /dev/md0 /dev/krping0"
	removeAction = "remove /dev/md0 /dev/krping0"
	reAddAction  = "re-add /dev/md0 /dev/krping0"
)

func inRaid(s *config.Session) { s.Raid = "/dev/md0" }

// wantsMember waits and compares what was done to the array, and how it uses the disk.
func (r *rig) wantsMember(after time.Duration, state raid.State, actions ...string) {
	r.Helper()
	time.Sleep(after)
	synctest.Wait()
	if did := r.array.did(); !slices.Equal(did, actions) {
		r.Errorf("did %q to the array, want %q\n%s", did, actions, r.log.String())
	}
	if got := r.Status()[0]; got.Member != state || got.Array != "/dev/md0" {
		r.Errorf("member of %q: %q, want %q", got.Array, got.Member, state)
	}
}

func (r *rig) logs(text string, times int) {
	r.Helper()
	if n := strings.Count(r.log.String(), text); n != times {
		r.Errorf("the log has %q %d times, want %d:\n%s", text, n, times, r.log.String())
	}
}

// attachDisk attaches a session, with its disk in the array.
func (r *rig) attachDisk(options ...func(*config.Session)) {
	r.Helper()
	r.member = raid.InSync
	r.declare(declared(append(options, inRaid)...))
	r.wants(2*time.Second, Attached, attachCommand)
	r.becomes("vol0", func(s *proc.Session) { s.Dev = "krping0" })
	r.wantsMember(time.Hour, raid.InSync)
}

func reconnecting(s *proc.Session) { s.State = "reconnecting" }
func back(s *proc.Session)         { s.State, s.Reconnects = "live", s.Reconnects+1 }

func (r *rig) memberBecomes(state raid.State) { r.array.change(func() { r.member = state }) }

func TestDiskIsPutBackWhenTheTargetIsBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.becomes("vol0", reconnecting)
		r.memberBecomes(raid.Failed)
		r.wantsMember(time.Minute, raid.Failed)
		r.becomes("vol0", back)
		r.wantsMember(2*time.Second, raid.Recovering, removeAction, reAddAction)
		r.memberBecomes(raid.InSync)
		r.wantsMember(time.Hour, raid.InSync)
		if s := r.Status()[0]; s.ReAdded != 1 || s.ReAddFailures != 0 || s.State != Attached {
			t.Errorf("%+v", s)
		}
		r.logs("put back into the array", 1)
	})
}

// The loss is over between two looks at the session.
func TestDiskIsPutBackAfterAShortLoss(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.becomes("vol0", back)
		r.wantsMember(10*time.Second, raid.InSync)
		r.memberBecomes(raid.Failed) // md has taken its time
		r.wantsMember(2*time.Second, raid.Recovering, removeAction, reAddAction)
	})
}

// Another attempt would fail as well, or undo what the operator did.
func TestDiskThatFailsWithItsTargetThereIsLeftAlone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.memberBecomes(raid.Failed)
		r.wantsMember(time.Hour, raid.Failed)
		r.logs("failed or was removed while its target was connected", 1)
		r.memberBecomes(raid.Missing)
		r.wantsMember(time.Hour, raid.Missing)

		r.becomes("vol0", back) // the next loss counts
		r.wantsMember(2*time.Second, raid.Recovering, reAddAction)
		r.memberBecomes(raid.Failed) // and the disk does not work
		r.wantsMember(time.Hour, raid.Failed)
	})
}

func TestPuttingBackBacksOff(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.array.change(func() { r.member, r.refuses = raid.Missing, errors.New("not possible") })
		r.becomes("vol0", back)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(r.array.did()); n < 20 || n > 50 {
			t.Errorf("%d attempts in 10 minutes", n)
		}
		r.logs("cannot be put back: not possible", 1)
		r.array.change(func() { r.refuses = nil })
		r.wantsMember(31*time.Second, raid.Recovering, reAddAction)
		if s := r.Status()[0]; s.ReAdded != 1 || s.ReAddFailures < 20 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWritebackDiskIsNotPutBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.memberBecomes(raid.Failed)
		r.becomes("vol0", func(s *proc.Session) { back(s); s.Writeback = true })
		r.wantsMember(time.Hour, raid.Failed)
		r.logs("mdadm --zero-superblock /dev/krping0", 1)
	})
}

// An array is assembled when its local disk is there, often before the session is attached.
func TestArrayIsAssembledLater(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.member = raid.NoArray
		r.module.sessions["vol0"] = proc.Session{Name: "vol0", Mode: "remote", State: "live", Dev: "krping0", Peer: "10.0.0.1:9999"}
		r.declare(declared(inRaid))
		r.wantsMember(time.Hour, raid.NoArray)
		r.memberBecomes(raid.Missing)
		r.wantsMember(2*time.Second, raid.Recovering, reAddAction)
	})
}

// An array keeps its disks open, so that a failed session could not be stopped.
func TestFailedSessionIsTakenOutOfItsArray(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.becomes("vol0", failed)
		r.wants(1500*time.Millisecond, Attached, stopCommand, attachCommand)
		r.becomes("vol0", func(s *proc.Session) { s.Dev = "krping0" })
		r.wantsMember(2*time.Second, raid.Recovering, failAction, removeAction, reAddAction)
	})
}

func TestArrayThatCannotBeRead(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attachDisk()
		r.array.change(func() { r.broken = errors.New("/dev/md0 is not an md array") })
		r.wantsMember(time.Hour, "")
		r.logs("is not an md array", 1)
		r.declare(declared())
		r.wants(2*time.Second, Attached)
		if s := r.Status()[0]; s.Array != "" {
			t.Errorf("%+v", s)
		}
	})
}
