// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/uuid"
)

func TestCreate(t *testing.T) {
	for _, preallocate := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "a.img")
		id, err := Create(t.Context(), New{Path: path, Size: 1 << 20, Preallocate: preallocate})
		if err != nil {
			t.Fatal(err)
		}
		var in unix.Stat_t
		if err := unix.Stat(path, &in); err != nil || in.Size != 1<<20 || (512*in.Blocks >= 1<<20) != preallocate {
			t.Errorf("preallocate %v: %d bytes, %d blocks, %v", preallocate, in.Size, in.Blocks, err)
		}
		s, err := Open("file:"+path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Identity(); got != (Identity{UUID: id}) {
			t.Errorf("identity %+v, want UUID %s and no writer", got, id)
		}
		_ = s.Close()
	}
	id := uuid.New()
	if got, err := Create(t.Context(), New{Path: filepath.Join(t.TempDir(), "a.img"), Size: 512, UUID: id}); err != nil || got != id {
		t.Errorf("with a UUID: %s, %v", got, err)
	}
}

// Space is allocated in steps, so that an interrupted create ends soon. It leaves nothing.
func TestPreallocateInSteps(t *testing.T) {
	before := allocateStep
	allocateStep = 256 << 10
	defer func() { allocateStep = before }()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.img")
	var told []int64
	n := New{Path: path, Size: 1<<20 - 512, Preallocate: true, Allocated: func(n int64) { told = append(told, n) }}
	if _, err := Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	var in unix.Stat_t
	if err := unix.Stat(path, &in); err != nil || in.Size != n.Size || 512*in.Blocks < n.Size {
		t.Errorf("%d bytes, %d blocks, %v", in.Size, in.Blocks, err)
	}
	if want := []int64{256 << 10, 512 << 10, 768 << 10, n.Size}; !slices.Equal(told, want) {
		t.Errorf("told %d, want %d", told, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	n.Path, told = filepath.Join(dir, "b.img"), nil
	n.Allocated = func(n int64) {
		if told = append(told, n); len(told) == 2 {
			cancel()
		}
	}
	if _, err := Create(ctx, n); !errors.Is(err, context.Canceled) || len(told) != 2 {
		t.Errorf("interrupted: %v after %d steps", err, len(told))
	}
	wantFiles(t, dir, "a.img")
}

// A new file is on stable storage with its size and its record, and then its name. If that fails, nothing is left.
func TestCreateSyncs(t *testing.T) { withRecords(t, testCreateSyncs) }

func testCreateSyncs(t *testing.T) {
	realFile, realDir := syncFile, syncDir
	defer func() { syncFile, syncDir = realFile, realDir }()
	for fails, left := range map[string]bool{"": true, "file": false, "directory": false} {
		dir := t.TempDir()
		path := filepath.Join(dir, "a.img")
		var synced []string
		sync := func(what string) error {
			if synced = append(synced, what); what == fails {
				return unix.EIO
			}
			return nil
		}
		syncFile = func(f *os.File) error {
			info, err := os.Stat(path)
			if err != nil || info.Size() != 4096 {
				t.Errorf("synced with %v, %v", info, err)
			}
			if _, found, err := loadRecord(f); !found {
				t.Errorf("synced without a record: %v", err)
			}
			return sync("file")
		}
		syncDir = func(path string) error {
			if path != dir {
				t.Errorf("synced the directory %s, want %s", path, dir)
			}
			return sync("directory")
		}
		if _, err := Create(t.Context(), New{Path: path, Size: 4096}); errors.Is(err, unix.EIO) == left {
			t.Errorf("%q fails: %v", fails, err)
		}
		if want := []string{"file", "directory"}; !slices.Equal(synced, want) {
			t.Errorf("%q fails: synced %q, want %q", fails, synced, want)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 != left {
			t.Errorf("%q fails: left %v, %v", fails, entries, err)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		n    New
		want string
	}{
		"no size":       {New{Path: "a.img"}, "multiple of the block size"},
		"odd size":      {New{Path: "a.img", Size: 1000}, "multiple of the block size"},
		"no directory":  {New{Path: "none/a.img", Size: 4096}, "there is no directory " + dir + "/none"},
		"under a file":  {New{Path: "there/a.img", Size: 4096}, "not a directory"},
		"exists":        {New{Path: "there", Size: 4096}, "exists"},
		"record exists": {New{Path: "b.img", Size: 4096}, "b.img.krping exists"},
		"too large":     {New{Path: "a.img", Size: 1 << 61, Preallocate: true}, "left"},
		"far too large": {New{Path: "a.img", Size: 1<<63 - 512}, "size of the store"}, // refused by the file system, after the file was made
	} {
		if name == "record exists" {
			if err := os.WriteFile(filepath.Join(dir, "b.img.krping"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tc.n.Path = filepath.Join(dir, tc.n.Path)
		if _, err := Create(t.Context(), tc.n); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		_ = os.Remove(filepath.Join(dir, "b.img.krping"))
		wantFiles(t, dir, "there")
	}
	if data, err := os.ReadFile(there); string(data) != "data" {
		t.Errorf("a file that existed: %q, %v", data, err)
	}
}

func TestMoreThanTheFreeSpaceIsTold(t *testing.T) {
	before := freeBytes
	freeBytes = func(unix.Statfs_t) int64 { return 1 << 20 }
	defer func() { freeBytes = before }()
	path := filepath.Join(t.TempDir(), "a.img")
	var log []string
	tell := func(msg string) { log = append(log, msg) }
	if _, err := Create(t.Context(), New{Path: path, Size: 8 << 20, Log: tell}); err != nil {
		t.Fatal(err)
	}
	s, err := Open("file:"+path, Options{Log: tell})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(log) != 2 || !strings.Contains(log[0], "has only 1.0 MiB left; writes fail") || !strings.Contains(log[1], "8.0 MiB still to allocate") {
		t.Errorf("log: %q", log)
	}
}

// A path of a device that is not there is neither made a file nor taken for one that create could make.
func TestMissingDevice(t *testing.T) {
	const path = "/dev/krping-no-such-disk"
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		if _, err := Create(t.Context(), New{Path: p, Size: 4096}); err == nil || !strings.Contains(err.Error(), "there is no such device") {
			t.Errorf("create %s: %v", p, err)
		}
		if _, err := Open("file:"+p, Options{Size: 4096}); err == nil || !strings.Contains(err.Error(), "there is no such device") {
			t.Errorf("open %s: %v", p, err)
		}
	}
	if _, err := os.Lstat(path); err == nil {
		_ = os.Remove(path)
		t.Error("made a file")
	}
}
