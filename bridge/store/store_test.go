// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestReadReturnsWrittenData(t *testing.T) {
	for _, spec := range []string{"mem:", "file:" + newFile(t, 1<<20)} {
		for _, writeback := range []bool{false, true} {
			s, err := Open(spec, Options{Size: 1 << 20, Writeback: writeback})
			if err != nil {
				t.Fatal(err)
			}
			want := []byte("krping\x00\x00data")
			if n, err := s.WriteAt(want, 1<<20-int64(len(want))); n != len(want) || err != nil {
				t.Errorf("%s: write: %d, %v", spec, n, err)
			}
			got := make([]byte, len(want))
			if _, err := s.ReadAt(got, 1<<20-int64(len(want))); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: read: %q, %v", spec, got, err)
			}
			if err := s.Zero(1<<20-8, 8, writeback); err != nil {
				t.Errorf("%s: zero: %v", spec, err)
			}
			if _, err := s.ReadAt(got, 1<<20-int64(len(want))); err != nil || !bytes.Equal(got[4:], make([]byte, 8)) || !bytes.Equal(got[:4], want[:4]) {
				t.Errorf("%s: after zero: %q, %v", spec, got, err)
			}
			if err := s.Discard(4096, 8192); err != nil {
				t.Errorf("%s: discard: %v", spec, err)
			}
			if s.Size() != 1<<20 || s.Flush() != nil || s.Close() != nil {
				t.Errorf("%s: size %d, or flush or close failed", spec, s.Size())
			}
		}
	}
}

// Zeroed memory returns to the kernel, except for pages that hold other data too.
func TestZeroReturnsMemory(t *testing.T) {
	const size, off, n = 1 << 20, 1000, 900_000
	s, err := Open("mem:", Options{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ones := bytes.Repeat([]byte{1}, size)
	if _, err := s.WriteAt(ones, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Zero(off, n, false); err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	resident := make([]byte, size/page)
	data := s.(*memory).data
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), size, uintptr(unsafe.Pointer(&resident[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for i, in := range resident {
		if inside := i*page >= off && (i+1)*page <= off+n; inside == (in&1 != 0) {
			t.Errorf("page %d: resident %v", i, in&1 != 0)
		}
	}
	got := make([]byte, size)
	if _, err := s.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	clear(ones[off:][:n])
	if !bytes.Equal(got, ones) {
		t.Error("not exactly the range is zero")
	}
}

func TestWholeBlocks(t *testing.T) {
	for _, tc := range []struct{ off, n, first, length int64 }{
		{0, 4096, 0, 4096},
		{512, 1024, 4096, 0},
		{512, 3584, 4096, 0},
		{512, 8192, 4096, 4096},
		{4096, 4097, 4096, 4096},
		{131584, 12288, 135168, 8192},
	} {
		if first, length := whole(4096, tc.off, tc.n); first != tc.first || length != tc.length {
			t.Errorf("%d bytes at %d: %d at %d, want %d at %d", tc.n, tc.off, length, first, tc.length, tc.first)
		}
	}
}

func TestExistingFileHasItsSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.img")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("file:"+path, Options{Size: 8192}); err == nil || !strings.Contains(err.Error(), "4096") || !strings.Contains(err.Error(), "8192") {
		t.Errorf("open with another size: %v; want an error with both sizes", err)
	}
	s, err := Open("file:"+path, Options{})
	if err != nil || s.Size() != 4096 {
		t.Fatalf("open without a size: %v", err)
	}
	_ = s.Close()
}

func TestFileGrows(t *testing.T) {
	path := newFile(t, 4096)
	s, err := Open("file:"+path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	if s.Size() != 4096 || s.Refresh() != nil || s.Size() != 8192 {
		t.Errorf("size %d after the file has grown to 8192", s.Size())
	}
}

func TestBadSpecs(t *testing.T) {
	for _, spec := range []string{"", "mem", "file:", "disk:x", "mem:x", "file:/nosuch/dir/file", "file:" + t.TempDir(), "file:/dev/zero"} {
		if s, err := Open(spec, Options{Size: 4096}); err == nil {
			t.Errorf("%q: accepted", spec)
			_ = s.Close()
		}
	}
	if _, err := Open("mem:", Options{}); err == nil {
		t.Error("mem: without a size: accepted")
	}
	if _, err := Open("file:"+newFile(t, 0), Options{}); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty file: %v", err)
	}
}

// A store is never made by opening it: the file system that has it may not be mounted.
func TestMissingFileIsNotMade(t *testing.T) {
	dir := t.TempDir()
	_, err := Open("file:"+filepath.Join(dir, "a.img"), Options{Size: 8192})
	if err == nil || !strings.Contains(err.Error(), "krping-bridge create --store file:"+dir+"/a.img --size 8192") {
		t.Errorf("%v", err)
	}
	wantFiles(t, dir)
}

func newFile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.img")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantFiles checks which files a directory has.
func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("files: %q, want %q", got, want)
	}
}

// What the kernel could not write back before the store was opened is told, and no change fails for it.
func TestOldErrorsAreForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vol0.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	errs := []error{unix.EIO}
	s := &file{File: f, writeback: true, commits: commits{sync: func(bool) (err error) {
		if len(errs) > 0 {
			err, errs = errs[0], errs[1:]
		}
		return err
	}}}
	var said string
	s.forgetOldErrors(Options{Log: func(msg string) { said = msg }})
	if !strings.Contains(said, "writes from before this start may be lost") {
		t.Errorf("said %q", said)
	}
	if err := s.commit(false, func() error { return nil }); err != nil {
		t.Errorf("a flush failed for writes from before the start: %v", err)
	}
}
