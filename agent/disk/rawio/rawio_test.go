// SPDX-License-Identifier: Apache-2.0

package rawio

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A partition leads to its disk, and to where it begins there.
func TestWhole(t *testing.T) {
	sys := t.TempDir()
	part := filepath.Join(sys, "devices/nvme0n1/nvme0n1p2")
	dev := filepath.Join(sys, "dev/block")
	if err := errors.Join(
		os.MkdirAll(part, 0o755), os.MkdirAll(dev, 0o755),
		os.WriteFile(filepath.Join(part, "partition"), []byte("2\n"), 0o600), os.WriteFile(filepath.Join(part, "start"), []byte("2048\n"), 0o600),
		os.Symlink(filepath.Dir(part), filepath.Join(dev, "259:0")), os.Symlink(part, filepath.Join(dev, "259:2")),
	); err != nil {
		t.Fatal(err)
	}
	if disk, start, err := whole(sys, unix.Mkdev(259, 2)); disk != "nvme0n1" || start != 1<<20 || err != nil {
		t.Errorf("partition: %q, %d, %v", disk, start, err)
	}
	if disk, start, err := whole(sys, unix.Mkdev(259, 0)); disk != "" || start != 0 || err != nil {
		t.Errorf("disk: %q, %d, %v", disk, start, err)
	}
	if _, _, err := whole(sys, unix.Mkdev(1, 1)); err == nil {
		t.Error("no disk: no error")
	}
}
