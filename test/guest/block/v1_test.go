// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"crypto/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
