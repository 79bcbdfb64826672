// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A disk may be given with and without /dev/. A file is never taken for a disk, nor a disk that is not
// there for a new file.
func TestDevicePath(t *testing.T) {
	dev := t.TempDir()
	t.Chdir(t.TempDir())
	for _, path := range []string{filepath.Join(dev, "vdb"), filepath.Join(dev, "mapper/vg-lv"), filepath.Join(dev, "both"), "both", "data"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"vdb": dev + "/vdb", "mapper/vg-lv": dev + "/mapper/vg-lv", dev + "/vdb": dev + "/vdb", "./vdb": "./vdb", "data": "data", "new": "new",
		"./both": "./both", "krping0": dev + "/krping0", "nvme0n1p1": dev + "/nvme0n1p1", "mapper": "mapper", "": "",
	} {
		got, err := devicePathIn(dev, name, os.FileMode.IsRegular)
		if err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", name, got, err, want)
		}
	}
	want := "both is a file here and a disk: give ./both or " + dev + "/both"
	if got, err := devicePathIn(dev, "both", os.FileMode.IsRegular); exitCode(err) != exitUsage || err.Error() != want {
		t.Errorf("both: %q, %v, want %s", got, err, want)
	}
}
