// SPDX-License-Identifier: Apache-2.0

package raid

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStateOf(t *testing.T) {
	for _, tc := range []struct {
		flags, slot string
		want        State
	}{
		{"in_sync", "0", InSync},
		{"in_sync,write_mostly", "1", InSync},
		{"faulty,write_mostly", "none", Failed},
		{"faulty,write_mostly,write_error", "1", Failed}, // md still waits for its requests
		{"write_mostly,spare", "1", Recovering},
		{"spare", "none", Spare},
	} {
		if got := stateOf(tc.flags, tc.slot); got != tc.want {
			t.Errorf("flags %q in slot %q: %s, want %s", tc.flags, tc.slot, got, tc.want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStateInSysfs(t *testing.T) {
	sys, dev := t.TempDir(), t.TempDir()
	md := MD{Sys: sys}
	wants := func(array string, want State, text string) {
		t.Helper()
		got, err := md.State(filepath.Join(dev, array), "/dev/krping0")
		if got != want || (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %q, %v; want %q, %q", array, got, err, want, text)
		}
	}
	wants("md127", NoArray, "")
	write(t, filepath.Join(dev, "md127"), "")
	wants("md127", "", "md127 is not an md array")
	dir := filepath.Join(sys, "class/block/md127/md")
	write(t, filepath.Join(dir, "array_state"), "inactive\n")
	wants("md127", NoArray, "")
	write(t, filepath.Join(dir, "array_state"), "clean\n")
	wants("md127", Missing, "")
	write(t, filepath.Join(dir, "dev-krping0/state"), "in_sync,write_mostly\n")
	write(t, filepath.Join(dir, "dev-krping0/slot"), "1\n")
	wants("md127", InSync, "")
	if err := os.Symlink("md127", filepath.Join(dev, "replica")); err != nil {
		t.Fatal(err)
	}
	wants("replica", InSync, "")
}

// mdadm is run with the array and the disk, and what it says is in the error.
func TestManage(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	if err := (MD{}).ReAdd(t.Context(), "/dev/md0", "/dev/krping0"); err == nil || err.Error() != "mdadm is not installed: install the package mdadm" {
		t.Errorf("without mdadm: %v", err)
	}
	program := "#!/bin/sh\necho \"$@\" >>" + bin + "/calls\ncase $3 in --remove) echo mdadm: busy >&2; echo again >&2; exit 1;; esac\n"
	write(t, filepath.Join(bin, "mdadm"), program)
	if err := os.Chmod(filepath.Join(bin, "mdadm"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (MD{}).Fail(t.Context(), "/dev/md0", "/dev/krping0"); err != nil {
		t.Error(err)
	}
	err := (MD{}).Remove(t.Context(), "/dev/md0", "/dev/krping0")
	if want := "mdadm --manage /dev/md0 --remove /dev/krping0: exit status 1: mdadm: busy; again"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := (MD{}).ReAdd(t.Context(), "/dev/md0", "/dev/krping0"); err != nil {
		t.Error(err)
	}
	calls, _ := os.ReadFile(filepath.Join(bin, "calls"))
	if want := "--manage /dev/md0 --fail /dev/krping0\n--manage /dev/md0 --remove /dev/krping0\n--manage /dev/md0 --re-add /dev/krping0\n"; string(calls) != want {
		t.Errorf("mdadm was called with\n%swant\n%s", calls, want)
	}
}
