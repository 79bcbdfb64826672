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

// program puts a shell script in place of mdadm.
func program(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	write(t, filepath.Join(bin, "mdadm"), "#!/bin/sh\n"+script)
	if err := os.Chmod(filepath.Join(bin, "mdadm"), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestMdadmIsNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := MD{}.Remove(t.Context(), "/dev/md0", "/dev/krping0")
	if err == nil || err.Error() != "mdadm is not installed: install the package mdadm" {
		t.Error(err)
	}
}

func TestMdadmIsGivenArrayAndDisk(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	program(t, "echo \"$@\" >>"+calls+"\ncase $3 in --remove) echo mdadm: busy >&2; echo again; exit 1;; esac\n")
	if err := (MD{}).Fail(t.Context(), "/dev/md0", "/dev/krping0"); err != nil {
		t.Error(err)
	}
	err := MD{}.Remove(t.Context(), "/dev/md0", "/dev/krping0")
	if want := "mdadm --manage /dev/md0 --remove /dev/krping0: exit status 1: mdadm: busy; again"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	text, err := os.ReadFile(calls)
	if want := "--manage /dev/md0 --fail /dev/krping0\n--manage /dev/md0 --remove /dev/krping0\n"; string(text) != want {
		t.Errorf("mdadm was called with\n%swant\n%s(%v)", text, want, err)
	}
}

// A disk is put back only if it was last in use together with those that hold the array's data.
func TestReAddChecksWhatTheDiskWasUsedWith(t *testing.T) {
	sys, dev := t.TempDir(), t.TempDir()
	array := filepath.Join(dev, "md0")
	write(t, array, "")
	for name, text := range map[string]string{
		"dev-ram0/state": "in_sync\n", "dev-ram0/slot": "0\n", "dev-ram1/state": "faulty\n", "dev-ram1/slot": "none\n",
	} {
		write(t, filepath.Join(sys, "class/block/md0/md", name), text)
	}
	for _, tc := range []struct{ examine, want string }{
		{"   Device Role : Active device 1\n   Array State : AA ('A' == active, '.' == missing, 'R' == replacing)", ""},
		{"   Array State : A. ('A' == active", ""},
		{"   Array State : R. ('A' == active", ""},
		{"   Array State : .A ('A' == active", "was in use without the disk in slot 0 of " + array + " (Array State .A)"},
		{"        Version : 0.90.00", "/dev/krping0 has no superblock of version 1.x"},
	} {
		program(t, "case $1 in --examine) cat <<END;;\n"+tc.examine+"\nEND\n*) [ \"$3\" = --re-add ];; esac\n")
		err := MD{Sys: sys}.ReAdd(t.Context(), array, "/dev/krping0")
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.examine, err, tc.want)
		}
	}
}
