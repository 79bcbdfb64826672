// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/guest/internal/v1peer"
	"krping/test/internal/needs"
)

// A disk on a target that speaks protocol version 1 works as it did then, also after a reconnect. The target
// fails the test for anything that version 1 did not have.
func TestVersion1Target(t *testing.T) {
	needs.Test(t, needs.Once)
	for name, key := range map[string]string{"without a key": "", "with a key": "a-key-of-thirty-two-characters--"} {
		t.Run(name, func(t *testing.T) {
			guest.CheckResources(t)
			g := v1peer.Start(t, key)
			args := []string{"client", "--addr", guest.Addr(t), "--port", strconv.Itoa(g.Port), "--block", "vol0", "--queues", "2"}
			if key != "" {
				args = append(args, "--key-file", targets.KeyFile(t, key))
			}
			path := strings.TrimSpace(guest.MustKrpingctl(t, args...))
			t.Cleanup(func() {
				if guest.Session(t, "vol0") != nil {
					krpingctl(t, "stop", "--force", "vol0")
				}
			})
			wantVersion1(t, g, 2)
			useVersion1(t, g, path)
			g.HangUp()
			guest.Eventually(t, 20*time.Second, "the session has reconnected", func() bool {
				s := guest.Session(t, "vol0")
				return s["state"] == "live" && s["reconnects"] != "0"
			})
			useVersion1(t, g, path)
			krpingctl(t, "verify", path)
			guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0")
			krpingctl(t, "stop", "vol0")
		})
	}
}

// Version 1 has no names longer than 27 characters, and none with slashes. A client with such a name says so at once.
func TestVersion1TargetAndLongName(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	g := v1peer.Start(t, "")
	for _, name := range []string{"pvc-123e4567-e89b-12d3-a456-426614174000", "pool/image"} {
		r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(g.Port), "--block", name, "--queues", "1")
		if r.Code == 0 || !strings.Contains(r.Stderr, "speaks version 1 only, in which a volume's name has at most 27 characters and no '/'") {
			t.Errorf("%s: %+v", name, r)
		}
		if accepted, others := g.Accepted(); accepted != 0 || others[2] != 1 || len(others) != 1 {
			t.Errorf("%s: %d connections after hellos of other versions: %v", name, accepted, others)
		}
	}
}

// A target of version 1 does not say which volume it has, so a client that wants a certain one refuses it.
func TestVersion1TargetAndUUID(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	g := v1peer.Start(t, "")
	r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(g.Port), "--block", "vol0", "--queues", "1", "--uuid", someUUID)
	if r.Code == 0 || !strings.Contains(r.Stderr, "it speaks version 1 only, so uuid= cannot be checked") {
		t.Errorf("%+v", r)
	}
	command := fmt.Sprintf("client,addr=%s,port=%d,block=vol0,uuid=%s", guest.Addr(t), g.Port, someUUID)
	if err := guest.Command(command, guest.Limit); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("%v, want EPROTONOSUPPORT", err)
	}
	if s := guest.Session(t, "vol0"); s != nil {
		t.Errorf("a refused session is left: %v", s)
		krpingctl(t, "stop", "--force", "vol0")
	}
}

const someUUID = "123e4567-e89b-12d3-a456-426614174000"

// While a client reconnects, its target of version 1 is replaced by one of version 2 with the same data. The session goes
// on, and the volume has an identity from then on: another one is refused.
func TestTargetIsUpgraded(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		g := v1peer.Start(t, "")
		dev := guest.OpenDirect(t, guest.Attach(t, g.Port, ",queues=2"))
		guest.WantFields(t, guest.Session(t, "vol0"), "version", "1", "uuid", "-")
		data, got := guest.Aligned(t, mib), guest.Aligned(t, mib)
		_, _ = rand.Read(data) // never fails
		if _, err := dev.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		if err := dev.Sync(); err != nil { // else they count as lost, as each start of a write-back target has an epoch
			t.Fatal(err)
		}
		g.Stop()
		config := targets.Config{Port: g.Port, Store: target.NewStore(t, v1peer.Size), Writeback: true}
		guest.Run(t, "dd", "if="+saved(t, g), "of="+config.Store, "bs=1M", "conv=notrunc,fsync", "status=none")
		served := target.Serve(t, config)
		guest.Eventually(t, 20*time.Second, "the session has reconnected", func() bool { return guest.Session(t, "vol0")["state"] != "reconnecting" })
		guest.WantFields(t, guest.Session(t, "vol0"), "state", "live")
		reader := fakeclient.Connect(t, g.Port, fakeclient.Hello(1, func(h *wire.Hello) { h.Flags = wire.HelloReadOnly }))
		guest.WantFields(t, guest.Session(t, "vol0"), "version", "2", "uuid", reader.Welcome.UUID.String(), "errors", "0")
		if _, err := dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read after the upgrade: %v, or other data than was written", err)
		}
		guest.WriteAndSync(t, dev)
		served.Stop()
		const another = "the target has another volume: its UUID is"
		logged := strings.Count(guest.Run(t, "dmesg"), another)
		target.ServeNew(t, v1peer.Size, targets.Config{Port: g.Port, Writeback: true})
		guest.SessionBecomes(t, "failed")
		if strings.Count(guest.Run(t, "dmesg"), another) == logged {
			t.Error("the log does not say that the target has another volume")
		}
	})
}

// saved returns a file with the first MiB of a volume.
func saved(t *testing.T, g *v1peer.Target) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "saved")
	if err := os.WriteFile(path, g.Volume.Load(0, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A session of version 2 does not go on with a target of version 1, whose volume may be any.
func TestTargetIsDowngraded(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	served := targets.Module.ServeNew(t, v1peer.Size, targets.Config{Writeback: true})
	dev := guest.OpenDirect(t, guest.Attach(t, served.Port, ",queues=2"))
	guest.WriteAndSync(t, dev)
	served.Stop()
	guest.SessionBecomes(t, "reconnecting")
	const another = "the target has another volume: its UUID is 00000000-0000-0000-0000-000000000000, not "
	logged := strings.Count(guest.Run(t, "dmesg"), another)
	g := v1peer.StartAt(t, served.Port, "")
	guest.SessionBecomes(t, "failed")
	if strings.Count(guest.Run(t, "dmesg"), another) == logged {
		t.Error("the log does not say that the target may have another volume")
	}
	if accepted, _ := g.Accepted(); accepted != 1 {
		t.Errorf("%d connections of version 1, want 1, which the client closes", accepted)
	}
	if _, err := dev.ReadAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("read: %v, want EIO", err)
	}
}

// wantVersion1 checks that the client has connected its queues, after each was told that another version is not known.
func wantVersion1(t *testing.T, g *v1peer.Target, queues int) {
	t.Helper()
	accepted, others := g.Accepted()
	if accepted != queues || len(others) != 1 || others[2] == 0 || others[2] > queues {
		t.Errorf("%d connections of %d queues, after hellos of other versions: %v", accepted, queues, others)
	}
}

// useVersion1 writes in each way that a disk has, and checks what the target and the disk hold.
func useVersion1(t *testing.T, g *v1peer.Target, path string) {
	t.Helper()
	dev := guest.OpenDirect(t, path)
	defer dev.Close()
	data := guest.Aligned(t, mib)
	_, _ = rand.Read(data) // never fails
	for at := 0; at < mib; at += mib / 2 {
		for _, part := range [][2]int{{at, at + 4096}, {at + 4096, at + mib/2}} { // inline, and by rkey
			if _, err := dev.WriteAt(data[part[0]:part[1]], int64(part[0])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := unix.Pwritev2(int(dev.Fd()), [][]byte{data[:4096]}, 0, unix.RWF_DSYNC); err != nil {
		t.Error(err)
	}
	if err := dev.Sync(); err != nil {
		t.Error(err)
	}
	guest.Run(t, "blkdiscard", "--zeroout", "--offset", "8192", "--length", "16384", path)
	guest.Run(t, "blkdiscard", "--offset", "65536", "--length", "4096", path)
	clear(data[8192:][:16384])
	clear(data[65536:][:4096]) // version 1's target here discards with zeros
	got := guest.Aligned(t, mib)
	if _, err := dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the disk holds other data than was written: %v", err)
	}
	if !bytes.Equal(g.Volume.Load(0, mib), data) {
		t.Error("the target holds other data than was written")
	}
}
