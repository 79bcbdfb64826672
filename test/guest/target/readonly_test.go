// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// A disk that cannot be written to is served read-only or not at all.
func TestReadOnlyDisk(t *testing.T) {
	disk := guest.NullDisk(t, "locked", nil)
	guest.Run(t, "blockdev", "--setro", disk)
	t.Cleanup(func() { guest.Run(t, "blockdev", "--setrw", disk) })
	port := guest.NextPort()
	if err := guest.Command(guest.ServeCommand(t, "vol0", port, "backing="+disk), guest.Limit); !errors.Is(err, unix.EROFS) {
		t.Errorf("served for writing: %v, want EROFS", err)
	}
	if log := guest.Run(t, "dmesg"); !strings.Contains(log, disk+" is read-only") {
		t.Error("the log does not say that the disk is read-only")
	}
	if v := guest.Volume(t, "vol0"); v != nil {
		t.Errorf("a refused volume is left: %v", v)
	}
	out, err := guest.TryRun(guest.Binary(t, "krping-bridge"), "--listen", guest.AddrPort(t, port), "--store", "file:"+disk)
	if err == nil || !strings.Contains(out, "cannot open the store for writing (serve it read-only?)") {
		t.Errorf("served for writing by krping-bridge: %v\n%s", err, out)
	}
	served := targets.Module.Serve(t, targets.Config{Port: port, Store: disk, ReadOnly: true})
	c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
	if c.Welcome.Flags != wire.VolumeReadOnly {
		t.Errorf("flags %#x, want %#x", c.Welcome.Flags, wire.VolumeReadOnly)
	}
	c.WantServed()
	if a := c.Call(fakeclient.Write(1, 0, make([]byte, 512)))[0]; a.Status != wire.StatusReadOnly {
		t.Errorf("write: %+v", a)
	}
}
