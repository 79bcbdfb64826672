// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeSync calls fake in place of fsync until the test ends.
func fakeSync(t *testing.T, fake func(f *os.File, isDir bool) error) {
	t.Helper()
	real := sync
	sync = func(f *os.File) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return fake(f, info.IsDir())
	}
	t.Cleanup(func() { sync = real })
}

// wantOnly returns an error unless the file is the only one in its directory, with that content and mode 0600.
func wantOnly(path, content string) error {
	data, err := os.ReadFile(path)
	if err != nil || string(data) != content {
		return errors.Join(err, errors.New("content: "+string(data)))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		return errors.Join(err, errors.New("mode: "+info.Mode().String()))
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		return errors.Join(err, errors.New("files are left behind"))
	}
	return nil
}

// The file is synced before it gets its name, and the directory after it.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	for _, content := range []string{"old", "", "a longer one"} {
		before, _ := os.ReadFile(path)
		var synced []string
		fakeSync(t, func(f *os.File, isDir bool) error {
			kind, want := "file", string(before)
			if isDir {
				kind, want = "directory", content
			} else if data, err := os.ReadFile(f.Name()); err != nil || string(data) != content {
				t.Errorf("synced with %q, %v", data, err)
			}
			if now, _ := os.ReadFile(path); string(now) != want {
				t.Errorf("as the %s is synced, the content is %q, want %q", kind, now, want)
			}
			synced = append(synced, kind)
			return nil
		})
		if err := errors.Join(Write(path, []byte(content)), wantOnly(path, content)); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		if want := []string{"file", "directory"}; !slices.Equal(synced, want) {
			t.Errorf("synced %q, want %q", synced, want)
		}
		if err := os.Chmod(path, 0o644); err != nil { // the mode is not that of the old file
			t.Fatal(err)
		}
	}
}

// A file system that syncs no directories is no error, another failure is.
func TestSyncOfTheDirectory(t *testing.T) {
	for fails, want := range map[error]error{unix.EINVAL: nil, unix.EIO: unix.EIO} {
		path := filepath.Join(t.TempDir(), "a.json")
		fakeSync(t, func(_ *os.File, isDir bool) error {
			if isDir {
				return &os.PathError{Op: "sync", Path: path, Err: fails}
			}
			return nil
		})
		if err := Write(path, []byte("new")); !errors.Is(err, want) {
			t.Errorf("%v: error %v", fails, err)
		}
		if err := wantOnly(path, "new"); err != nil {
			t.Errorf("%v: %v", fails, err)
		}
	}
	if err := SyncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// After an error the old file is as it was, and nothing is left behind.
func TestErrorsLeaveTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	fakeSync(t, func(_ *os.File, isDir bool) error {
		if isDir {
			t.Error("the directory was synced")
		}
		return unix.ENOSPC
	})
	if err := Write(path, []byte("new")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if err := wantOnly(path, "old"); err != nil {
		t.Error(err)
	}
}

func TestPathsThatCannotBeReplaced(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(top, "none/a.json")} {
		if err := Write(path, []byte("new")); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
	if entries, err := os.ReadDir(top); err != nil || len(entries) != 1 || !entries[0].IsDir() {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
