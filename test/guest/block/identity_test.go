// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// While the target is away, its store is replaced by another one of the same size and name. The session fails,
// and the other store stays as it was.
func TestAnotherStore(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, "")
		krpingctl(t, "write", path, "--size", "1MiB", "--direct")
		dev := guest.OpenDirect(t, path)
		served.Stop()
		guest.SessionBecomes(t, "reconnecting")
		write := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
		other := target.ServeNew(t, 16*mib, targets.Config{Port: served.Port})
		guest.SessionBecomes(t, "failed")
		write.Fails(guest.Limit)
		if _, err := dev.ReadAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
			t.Errorf("read: %v, want EIO", err)
		}
		if log := guest.Run(t, "dmesg"); !strings.Contains(log, "the target has another volume: its UUID is ") {
			t.Error("the log does not say why the session failed")
		}
		if data := guest.Run(t, "head", "-c", "1048576", other.Store); strings.Trim(data, "\x00") != "" {
			t.Error("the other store was written to")
		}
		if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
			t.Error(err)
		}
	})
}

// A client with uuid= attaches that volume only. The UUID is the disk's wwid.
func TestPinnedUUID(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, "")
		uuid := guest.Session(t, "vol0")["uuid"]
		wwid, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(path), "wwid"))
		if err != nil || string(wwid) != "uuid."+uuid+"\n" {
			t.Errorf("wwid: %q, %v, want uuid.%s", wwid, err, uuid)
		}
		if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
			t.Fatal(err)
		}
		command := fmt.Sprintf("client,addr=%s,port=%d,block=vol0,uuid=", guest.Addr(t), served.Port)
		if err := guest.Command(command+"123e4567-e89b-12d3-a456-426614174000", guest.Limit); !errors.Is(err, unix.ESTALE) {
			t.Errorf("another UUID: %v, want ESTALE", err)
		}
		if s := guest.Session(t, "vol0"); s != nil {
			t.Errorf("a refused session is left: %v", s)
		}
		if err := guest.Command(command+strings.ToUpper(uuid), guest.Limit); err != nil {
			t.Fatal(err)
		}
		served.Stop()
		guest.SessionBecomes(t, "reconnecting")
		served.Again(t)
		guest.SessionBecomes(t, "live") // the same volume
		guest.WantFields(t, guest.Session(t, "vol0"), "uuid", uuid, "version", "2")
		if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
			t.Error(err)
		}
	})
}
