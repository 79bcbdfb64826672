// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"krping/bridge/atomicfile"
	"krping/bridge/uuid"
)

// record is what is kept about the volume in a regular file: in an extended attribute of the file,
// or, where the file system has none, in a second file beside it.
type record struct {
	uuid   uuid.UUID
	file   string   // which file it belongs to, of fileID: a copy of the file is another one
	writer [16]byte // the session that was last allowed to write; zero if there was none
}

var recordAttribute = "user.krping" // tests change it

const (
	recordSuffix = ".krping" // of the second file
	recordFormat = "krping volume 1\nuuid %s\nfile %s\nwriter %x\n"
	recordMax    = 512 // bytes
)

// String returns the record's text. Its length does not depend on the writer, so that one can be
// replaced where no space is left.
func (r record) String() string { return fmt.Sprintf(recordFormat, r.uuid, r.file, r.writer[:]) }

func parseRecord(text string) (record, error) {
	var r record
	var id, writer string
	if _, err := fmt.Sscanf(text, "krping volume 1\nuuid %s\nfile %s\nwriter %s\n", &id, &r.file, &writer); err != nil {
		return r, fmt.Errorf("malformed record of a volume: %q", text)
	}
	var err error
	if r.uuid, err = uuid.Parse(id); err != nil {
		return r, fmt.Errorf("malformed record of a volume: %w", err)
	}
	if len(writer) == 2*len(r.writer) {
		_, err = hex.Decode(r.writer[:], []byte(writer))
	}
	if err != nil || r.String() != text {
		return r, fmt.Errorf("malformed record of a volume: %q", text)
	}
	return r, nil
}

// loadRecord returns the record of a file, and false if it has none.
func loadRecord(f *os.File) (record, bool, error) {
	text := make([]byte, recordMax)
	n, err := unix.Fgetxattr(int(f.Fd()), recordAttribute, text)
	switch {
	case err == nil:
		r, err := parseRecord(string(text[:n]))
		return r, err == nil, err
	case !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP):
		return record{}, false, fmt.Errorf("cannot read the attribute %s of %s: %w", recordAttribute, f.Name(), err)
	}
	path, err := recordPath(f)
	if err != nil {
		return record{}, false, err
	}
	text, err = os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err != nil {
		return record{}, false, fmt.Errorf("cannot read the record of %s: %w", f.Name(), err)
	}
	r, err := parseRecord(string(text))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return r, err == nil, err
}

// saveRecord writes a record to stable storage. A crash leaves the old one or the new one.
func saveRecord(f *os.File, r record) error {
	if err := setRecord(f, r); err != nil {
		return err
	}
	return f.Sync()
}

// setRecord is saveRecord for a caller that syncs the file.
func setRecord(f *os.File, r record) error {
	err := unix.Fsetxattr(int(f.Fd()), recordAttribute, []byte(r.String()), 0)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, unix.ENOTSUP):
		return fmt.Errorf("cannot write the attribute %s of %s: %w", recordAttribute, f.Name(), err)
	}
	path, err := recordPath(f)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, []byte(r.String())); err != nil {
		return fmt.Errorf("cannot write the record of %s: %w", f.Name(), err)
	}
	return nil
}

// recordPath returns the path of a record that is a file.
func recordPath(f *os.File) (string, error) {
	path, err := filepath.EvalSymlinks(f.Name())
	if err != nil {
		return "", fmt.Errorf("cannot find the record of %s: %w", f.Name(), err)
	}
	return path + recordSuffix, nil
}

// fileID identifies a file within its file system, also after a restart of the host: a copy has another
// one, and so has a file that was restored under the same name.
func fileID(f *os.File) (string, error) {
	var in unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &in); err != nil {
		return "", fmt.Errorf("cannot stat the store: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return "", fmt.Errorf("cannot stat the file system of the store: %w", err)
	}
	if fs.Type == unix.FUSE_SUPER_MAGIC { // may number its files anew at each mount
		return "fuse", nil
	}
	var id strings.Builder
	fmt.Fprintf(&id, "ino=%d", in.Ino)
	if in.Mask&unix.STATX_BTIME != 0 {
		fmt.Fprintf(&id, ",born=%d.%09d", in.Btime.Sec, in.Btime.Nsec)
	}
	if fs.Type == unix.BTRFS_SUPER_MAGIC { // a snapshot has the same files
		fmt.Fprintf(&id, ",fs=%x.%x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1]))
	}
	return id.String(), nil
}
