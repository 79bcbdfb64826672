// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestText(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "queue/rotational"), " 1\n")
	for path, want := range map[string]string{"queue/rotational": "1", "queue/none": "", "queue": ""} {
		if got := Text(dir, path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// A partition leads to its disk, and a disk to itself.
func TestBlock(t *testing.T) {
	sys := t.TempDir()
	disk := filepath.Join(sys, "devices/nvme0n1")
	part := filepath.Join(disk, "nvme0n1p2")
	put(t, filepath.Join(disk, "dev"), "259:0\n")
	put(t, filepath.Join(part, "dev"), "259:1048575\n")
	put(t, filepath.Join(part, "partition"), "2\n")
	if err := os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{disk, part} {
		number, err := Number(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dir, Link(sys, number)); err != nil {
			t.Fatal(err)
		}
		if got, whole, err := Block(sys, number); got != dir || whole != disk || err != nil {
			t.Errorf("%s: %q on %q, %v", dir, got, whole, err)
		}
	}
	if dir, whole, err := Block(sys, unix.Mkdev(1, 1)); dir != "" || whole != "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not in sysfs: %q, %q, %v", dir, whole, err)
	}
	if number, err := Number(sys); err == nil {
		t.Errorf("without a number: %d", number)
	}
	if number, err := Number(part); number != unix.Mkdev(259, 1048575) || err != nil {
		t.Errorf("a number of 20 bits: %#x, %v", number, err)
	}
}
