// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// No command overwrites its input, whatever the path of its output.
func TestOutputIsNotAnInput(t *testing.T) {
	content, err := os.ReadFile(captures + "ping.pcapng.gz")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for _, err := range []error{
		os.WriteFile("a", content, 0o600), os.Mkdir("sub", 0o700), os.Link("a", "hard"), os.Symlink("a", "soft"), os.Symlink("soft", "softer"),
		os.Symlink(dir, "sub/up"), os.Symlink("new", "dangling"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, arguments := range []string{
		"capture --read a --write a", "capture --read a --write ./a", "capture --read a --write " + dir + "/a", "capture --read a --write sub/../a",
		"capture --read a --write sub/up/a", "capture --read a --write hard", "capture --read a --write soft", "capture --read softer --write hard",
		"capture --read a --svg ./a", "capture --read a --svg hard", "capture --read soft --svg softer",
		"capture --read a --write new --svg ./new", "capture --read a --write new --svg sub/up/new", "capture --read a --write new --svg dangling",
		"replay a ./a", "replay a hard", "replay soft a --any-device",
	} {
		err := run(t.Context(), strings.Fields(arguments), &bytes.Buffer{})
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "cannot be the same file") {
			t.Errorf("%s: %v", arguments, err)
		}
		if now, err := os.ReadFile("a"); err != nil || !bytes.Equal(now, content) {
			t.Fatalf("%s: the input was overwritten: %v", arguments, err)
		}
	}
	for _, arguments := range []string{"capture --read a", "capture --read hard", "replay soft b --any-device"} {
		if err := appending(t, "a", arguments); err == nil || !strings.Contains(err.Error(), "and standard output: cannot be the same file") {
			t.Errorf("%s >>a: %v", arguments, err)
		}
	}
	if _, err := os.Lstat("new"); err == nil {
		t.Error("a refused command made a file")
	}
	for _, arguments := range []string{"capture --read a --write /dev/null --svg /dev/null", "capture --read a --write b --svg c"} {
		if err := run(t.Context(), strings.Fields(arguments), &bytes.Buffer{}); err != nil {
			t.Errorf("%s: %v", arguments, err)
		}
	}
}

// An output is neither a new file in /dev nor a disk.
func TestNewFiles(t *testing.T) {
	for path, want := range map[string]string{
		"": "", "-": "", "/dev/null": "", filepath.Join(t.TempDir(), "new"): "", "/dev/krping-no-such-disk": "--write: /dev/krping-no-such-disk: there is no such device",
	} {
		if err := checkNewFile(namedFile{"--write", path}); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// appending runs a command whose standard output is appended to a file.
func appending(t *testing.T, path, arguments string) error {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before, err := unix.Dup(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(int(file.Fd()), 1, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Dup3(before, 1, 0); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(before)
	}()
	return run(t.Context(), strings.Fields(arguments), &bytes.Buffer{})
}
