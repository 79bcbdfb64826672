// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package target tests both targets inside one VM against clients that break the protocol, and the volumes that the
// module serves.
package target

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

const mib = 1 << 20

// verify compares what the device reads with the target's digests.
func verify(t *testing.T, dev string) {
	t.Helper()
	guest.MustKrpingctl(t, "verify", dev)
}

// A disk reports a failed flush once, perhaps for a client whose connection is lost by then. So the epoch changes:
// every client that reconnects learns that writes may be lost.
func TestFailedFlushChangesEpoch(t *testing.T) {
	disk, fail := guest.Flaky(t, guest.NullDisk(t, "nullb1", map[string]string{"cache_size": "1"}), 16*mib)
	served := targets.Module.Serve(t, targets.Config{Store: disk, Writeback: true, Shared: true})
	flush := func(want wire.Status) (epoch uint64) {
		t.Helper()
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		defer c.Close()
		if a := c.Call(fakeclient.Command(wire.OpFlush, 0, 0))[0]; a.Status != want {
			t.Errorf("FLUSH: status %d, want %d", a.Status, want)
		}
		return c.Welcome.Epoch
	}
	first := flush(wire.StatusOK)
	connected := map[string]*fakeclient.Client{}
	for i, name := range []string{"FLUSH", "FUA"} {
		connected[name] = fakeclient.Connect(t, served.Port, fakeclient.Hello(byte(9+i)))
	}
	fail(true)
	if flush(wire.StatusIO) != first {
		t.Error("the epoch changed although no flush had failed")
	}
	fail(false)
	if flush(wire.StatusOK) == first {
		t.Error("the epoch did not change after a failed flush")
	}
	// A FUA write to a disk that maps it to others, as dm does: one of these may have no FUA, and flush its cache.
	second := fakeclient.Connect(t, served.Port, fakeclient.Hello(20))
	fail(true)
	write := fakeclient.Write(1, 0, make([]byte, 512))
	write.Flags |= wire.FlagFUA
	if a := second.Call(write)[0]; a.Status != wire.StatusIO {
		t.Errorf("FUA: status %d", a.Status)
	}
	fail(false)
	second.Close()
	if flush(wire.StatusOK) == second.Welcome.Epoch {
		t.Error("the epoch did not change after a failed FUA write")
	}
	// Clients that were connected when the flush failed have the old epoch: the target disconnects them before it
	// promises them anything.
	fua := fakeclient.Write(1, 0, make([]byte, 512))
	fua.Flags |= wire.FlagFUA
	for name, r := range map[string]wire.Request{"FLUSH": fakeclient.Command(wire.OpFlush, 0, 0), "FUA": fua} {
		connected[name].Post(r)
		connected[name].WantClosed(name)
	}
}

func TestRefusedVolumes(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	port, other, taken := guest.NextPort(), guest.NextPort(), guest.NextPort()
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	guest.StartRping(t, guest.Addr(t), taken)
	disk := targets.Loop(t, 8*mib, "-b", "4096")
	for _, tc := range []struct {
		command string
		want    error
	}{
		{guest.ServeCommand(t, "vol0", other, "backing=ram:8M"), unix.EEXIST},
		{guest.ServeCommand(t, "vol1", taken, "backing=ram:8M"), unix.EADDRINUSE},
		{guest.ServeCommand(t, "vol1", other, "backing=/dev/nosuch"), unix.ENOENT},
		{guest.ServeCommand(t, "vol1", other, "backing=/dev/null"), unix.ENOTBLK},
		{guest.ServeCommand(t, "vol1", other, "backing="+disk), unix.EINVAL}, // block_size=512
		{fmt.Sprintf("server,addr=192.0.2.1,port=%d,block=vol1,backing=ram:8M", other), unix.EADDRNOTAVAIL},
		{"stop,target,block=nosuch", unix.ENOENT},
		{"stop,block=vol0", unix.ENOENT}, // a volume, no session
	} {
		if err := guest.Command(tc.command, guest.Limit); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.command, err, tc.want)
		}
	}
	guest.Serve(t, "vol1", other, "backing="+disk+",block_size=4096")
	if err := guest.Command(guest.ServeCommand(t, "vol2", guest.NextPort(), "backing="+disk), guest.Limit); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a disk that is served already: %v, want EBUSY", err)
	}
	if out, err := exec.Command("rmmod", "rdma_krping").CombinedOutput(); err == nil {
		t.Errorf("rmmod while a volume is served succeeded: %s", out)
	}
}

// Memory is lost when its volume stops, flushed or not. After a restart the client gets EIO, not zeros.
func TestStopLosesMemory(t *testing.T) {
	needs.Test(t, needs.Once)
	served := targets.Module.Serve(t, targets.Config{Store: "ram:8M"})
	dev := guest.OpenDirect(t, guest.Attach(t, served.Port, ""))
	guest.WriteAndSync(t, dev)
	served.Stop()
	served.Again(t)
	if _, err := dev.ReadAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("read after the memory was lost: %v, want EIO", err)
	}
	guest.WantFields(t, guest.Session(t, "vol0"), "state", "failed")
}

// Names as orchestrators give them: longer than what a hello has room for, and with slashes. A key is bound to the
// whole name.
func TestNames(t *testing.T) {
	needs.Test(t, needs.Once)
	const long = "kube-system/pvc-123e4567-e89b-12d3-a456-426614174000.snapshot-1"
	targets.Each(t, func(t *testing.T, g targets.Target) {
		for name, key := range map[string]string{long: secret, "pool/image": ""} {
			t.Run(name, func(t *testing.T) {
				served := g.ServeNew(t, 8*mib, targets.Config{Name: name, Key: key})
				client := []string{"client", "--addr", guest.Addr(t), "--port", strconv.Itoa(served.Port), "--block"}
				args := append(slices.Clone(client), name, "--queues", "2")
				if key != "" {
					args = append(args, "--key-file", targets.KeyFile(t, key))
				}
				dev := strings.TrimSpace(guest.MustKrpingctl(t, args...))
				defer func() {
					if guest.Session(t, name) != nil {
						guest.MustKrpingctl(t, "stop", name, "--force")
					}
				}()
				if volume := guest.Run(t, "cat", "/sys/block/"+filepath.Base(dev)+"/volume"); volume != name+"\n" {
					t.Errorf("sysfs has the name %q", volume)
				}
				guest.MustKrpingctl(t, "write", dev, "--size", "1MiB", "--direct")
				served.Stop()
				served = served.Again(t)
				verify(t, dev)
				guest.WantFields(t, guest.Session(t, name), "state", "live", "version", "2")
				if n := guest.Session(t, name)["reconnects"]; n != "1" {
					late.ErrorfIf(t, n != "0", "%s reconnects, want 1", n) // a busy host may lose it again
				}
				served.WantVolume(t, "queues", "2", "violations", "0")
				if log := guest.MustKrpingctl(t, "dmesg"); !strings.Contains(log, name) {
					t.Errorf("krpingctl dmesg has no message of %s:\n%s", name, log)
				}
				guest.MustKrpingctl(t, "stop", name)
				other := name[:len(name)-1] + "x"
				if r := guest.Krpingctl(t, append(slices.Clone(client), other)...); r.Code == 0 || !strings.Contains(r.Stderr, "no volume of that name") {
					t.Errorf("%s: %+v", other, r)
				}
			})
		}
	})
}
