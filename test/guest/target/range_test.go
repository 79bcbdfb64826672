// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// The device offers DISCARD if the target's disk can do it.
func TestDiscardIsOffered(t *testing.T) {
	for discard, want := range map[string]bool{"0": false, "1": true} {
		t.Run("discard="+discard, func(t *testing.T) {
			disk := guest.NullDisk(t, "range", map[string]string{"discard": discard})
			served := targets.Module.Serve(t, targets.Config{Store: disk})
			dev := guest.Attach(t, served.Port, "")
			bytes := strings.TrimSpace(guest.Run(t, "cat", "/sys/block/"+guest.Session(t, "vol0")["dev"]+"/queue/discard_max_bytes"))
			if offered := bytes != "0"; offered != want {
				t.Errorf("discard_max_bytes is %s", bytes)
			}
			if want {
				guest.Run(t, "blkdiscard", "--force", dev)
				guest.WantFields(t, guest.Session(t, "vol0"), "discards", "1", "errors", "0")
			}
		})
	}
}

// Zeroes that may not unmap keep the store's space, others give it back.
func TestZeroesKeepSpace(t *testing.T) {
	file := guest.StorePath(t)
	guest.Run(t, "truncate", "--size", "16M", file)
	disk := targets.LoopOf(t, file)
	served := targets.Module.Serve(t, targets.Config{Store: disk})
	path := guest.Attach(t, served.Port, "")
	dev := guest.OpenDirect(t, path)
	fill := func() {
		t.Helper()
		data := guest.Aligned(t, mib)
		for i := range data {
			data[i] = 1
		}
		if _, err := dev.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
	}
	allocated := func() int64 {
		t.Helper()
		var stat unix.Stat_t
		if err := unix.Stat(file, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Blocks * 512
	}
	for _, tc := range []struct {
		option string
		want   bool
	}{
		{"--punch-hole", false},
		{"--zero-range", true},
	} {
		fill()
		guest.Run(t, "fallocate", tc.option, "--keep-size", "--offset", "0", "--length", "1MiB", path)
		guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0")
		if n := allocated(); (n >= mib) != tc.want {
			t.Errorf("fallocate %s leaves %d bytes of the file", tc.option, n)
		}
		got := guest.Aligned(t, mib)
		got[0] = 1
		if _, err := dev.ReadAt(got, 0); err != nil || strings.Trim(string(got), "\x00") != "" {
			t.Errorf("fallocate %s: read %v, or not zeros", tc.option, err)
		}
	}
}
