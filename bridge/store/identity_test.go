// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/uuid"
)

// withRecords runs a test with records in attributes and in files of their own.
func withRecords(t *testing.T, test func(t *testing.T)) {
	t.Run("attribute", test)
	t.Run("file", func(t *testing.T) {
		old := recordAttribute
		defer func() { recordAttribute = old }()
		recordAttribute = "unsupported.krping"
		test(t)
	})
}

func open(t *testing.T, path string, o Options) Store {
	t.Helper()
	s, err := Open("file:"+path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestIdentityIsKept(t *testing.T) { withRecords(t, testIdentityIsKept) }

func testIdentityIsKept(t *testing.T) {
	path, writer := newFile(t, 4096), [16]byte{1, 2, 3}
	unsaved := open(t, path, Options{})
	_ = unsaved.Close()
	s := open(t, path, Options{})
	id := s.Identity().UUID
	if id.IsZero() || id == unsaved.Identity().UUID {
		t.Errorf("UUID %s of an open file without one, and %s before; want it kept only by SaveIdentity", id, unsaved.Identity().UUID)
	}
	if err := s.SaveIdentity(); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	s = open(t, path, Options{})
	if got := s.Identity(); got != (Identity{UUID: id}) {
		t.Errorf("%+v, want %s and no writer", got, id)
	}
	if err := s.SaveWriter(writer); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if err := os.Rename(path, path+".moved"); err != nil { // within the file system
		t.Fatal(err)
	}
	_ = os.Rename(path+recordSuffix, path+".moved"+recordSuffix)
	s = open(t, path+".moved", Options{ReadOnly: true, UUID: id})
	if got := s.Identity(); got != (Identity{id, writer}) {
		t.Errorf("%+v, want %s and the writer", got, id)
	}
	_ = s.Close()
	if _, err := Open("file:"+path+".moved", Options{UUID: uuid.New()}); err == nil || !strings.Contains(err.Error(), id.String()) {
		t.Errorf("with another UUID: %v", err)
	}
}

// A copy with the record of the original is another file.
func TestCopyIsRefused(t *testing.T) { withRecords(t, testCopyIsRefused) }

func testCopyIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.img")
	id, err := Create(t.Context(), New{Path: path, Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []bool{false, true} {
		replaceByCopy(t, path)
		_, err = Open("file:"+path, Options{})
		if err == nil || !strings.Contains(err.Error(), "copy of volume "+id.String()) || !strings.Contains(err.Error(), "krping-bridge adopt --store file:"+path) {
			t.Errorf("a copy: %v", err)
		}
		adopted, err := Adopt(path, uuid.UUID{}, keep)
		if err != nil || (adopted == id) != keep {
			t.Errorf("adopted: %s, %v; before it was %s", adopted, err, id)
		}
		s := open(t, path, Options{})
		if got := s.Identity(); got.UUID != adopted || got.Writer == [16]byte{} {
			t.Errorf("%+v, want %s and a last writer that is no session", got, adopted)
		}
		_ = s.Close()
		id = adopted
	}
	named := uuid.New()
	if got, err := Adopt(path, named, false); err != nil || got != named {
		t.Errorf("with a UUID: %s, %v", got, err)
	}
	if _, err := Adopt(newFile(t, 4096), uuid.UUID{}, true); err == nil {
		t.Error("the UUID of a file without one was kept")
	}
}

// replaceByCopy replaces a file by one with the same data and record.
func replaceByCopy(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, found, err := loadRecord(f)
	if err != nil || !found {
		t.Fatalf("record: %v, %v", found, err)
	}
	copied, err := os.OpenFile(path+".copy", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if err := copied.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	if err := saveRecord(copied, r); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".copy", path); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(path + ".copy" + recordSuffix)
}

func TestMalformedRecords(t *testing.T) { withRecords(t, testMalformedRecords) }

func testMalformedRecords(t *testing.T) {
	good := record{uuid: uuid.New(), file: "ino=1"}.String()
	if _, err := parseRecord(good); err != nil {
		t.Errorf("%q: %v", good, err)
	}
	for _, bad := range []string{"", "x", good[:len(good)-1], good + "x", strings.Replace(good, "1", "2", 1), strings.Replace(good, "0000", "00", 1), strings.Replace(good, "0000\n", "000g\n", 1)} {
		if r, err := parseRecord(bad); err == nil {
			t.Errorf("%q: %+v", bad, r)
		}
	}
}

// Serving a file read-only changes nothing, and its UUID stays the same while the file does.
func TestReadOnlyChangesNothing(t *testing.T) { withRecords(t, testReadOnlyChangesNothing) }

func testReadOnlyChangesNothing(t *testing.T) {
	path := newFile(t, 4096)
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	var ids []uuid.UUID
	for range 2 {
		s := open(t, path, Options{ReadOnly: true})
		if err := s.SaveIdentity(); err != nil {
			t.Error(err)
		}
		if _, err := s.WriteAt([]byte{1}, 0); err == nil {
			t.Error("the file is open for writing")
		}
		ids = append(ids, s.Identity().UUID)
		_ = s.Close()
	}
	if ids[0] != ids[1] || ids[0].IsZero() {
		t.Errorf("UUIDs %s and %s", ids[0], ids[1])
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, found, err := loadRecord(f); found || err != nil {
		t.Errorf("a record was made (%v), or %v", found, err)
	}
	wantFiles(t, filepath.Dir(path), "a.img")
	if err := os.WriteFile(path+".other", make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if other := open(t, path+".other", Options{ReadOnly: true}).Identity().UUID; other == ids[0] {
		t.Error("another file has the same UUID")
	}
}

// The writer that could not be kept is not there after a restart: the one before it is.
func TestWriterThatIsNotStable(t *testing.T) {
	for _, writeback := range []bool{false, true} {
		s, _, fail := countingStore(t, Options{Writeback: writeback})
		before, refused := [16]byte{1}, [16]byte{2}
		if err := s.SaveWriter(before); err != nil {
			t.Fatal(err)
		}
		*fail = unix.EIO
		if err := s.SaveWriter(refused); !errors.Is(err, unix.EIO) {
			t.Errorf("writeback=%v: %v", writeback, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := Open("file:"+s.Name(), Options{Writeback: writeback})
		if err != nil {
			t.Fatal(err)
		}
		if got := again.Identity().Writer; got != before {
			t.Errorf("writeback=%v: the writer is %x", writeback, got)
		}
		_ = again.Close()
	}
}
