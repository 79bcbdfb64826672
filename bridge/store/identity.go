// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"krping/bridge/uuid"
)

// identify finds the identity of the store. It changes nothing.
func (f *file) identify(o Options) error {
	if f.device {
		return f.identifyDevice(o)
	}
	id, err := fileID(f.File)
	if err != nil {
		return err
	}
	r, found, err := loadRecord(f.File)
	if err != nil {
		return err
	}
	if found {
		f.record, f.saved, f.keeps = r, true, !o.ReadOnly
		return checkRecord(f.Name(), r, id, o.UUID)
	}
	f.record, f.keeps = record{uuid: o.UUID, file: id}, !o.ReadOnly
	switch {
	case !o.UUID.IsZero():
	case o.ReadOnly:
		f.record.uuid = frozenUUID(f.File, id)
	default:
		f.record.uuid = uuid.New()
		o.log("store %s: has no UUID, and gets %s", f.Name(), f.record.uuid)
	}
	return nil
}

// checkRecord refuses a record that belongs to another file than that with the id.
func checkRecord(path string, r record, id string, want uuid.UUID) error {
	if r.file != id {
		return fmt.Errorf("store %s: is a copy of volume %s, or was restored or moved from another file system; "+
			"if it is to be a new volume: krping-bridge adopt --store file:%s; if it takes the place of the other one: "+
			"krping-bridge adopt --store file:%s --keep-uuid", path, r.uuid, path, path)
	}
	if !want.IsZero() && want != r.uuid {
		return fmt.Errorf("store %s: has the UUID %s, not the %s of --uuid", path, r.uuid, want)
	}
	return nil
}

// frozenUUID returns the UUID of a file that is only read, so that none can be kept: it stays the same as
// long as the file is not changed.
func frozenUUID(f *os.File, id string) uuid.UUID {
	var in unix.Stat_t
	_ = unix.Fstat(int(f.Fd()), &in) // has succeeded before
	return uuid.FromName(fmt.Sprintf("file %s size=%d mtime=%d.%09d", id, in.Size, in.Mtim.Sec, in.Mtim.Nsec))
}

func (f *file) identifyDevice(o Options) error {
	f.record.uuid = o.UUID
	if !o.UUID.IsZero() {
		return nil
	}
	name, err := deviceName(f.File)
	if err != nil {
		return err
	}
	if name != "" {
		f.record.uuid = uuid.FromName(name)
		return nil
	}
	f.record.uuid = uuid.New()
	o.log("store %s: the device has no name of its own, such as a serial number, so its UUID changes at each start and "+
		"clients fail then; give it one: --uuid %s", f.Name(), f.record.uuid)
	return nil
}

func (f *file) Identity() Identity {
	f.naming.Lock()
	defer f.naming.Unlock()
	return Identity{f.record.uuid, f.record.writer}
}

func (f *file) SaveIdentity() error {
	f.naming.Lock()
	defer f.naming.Unlock()
	if f.saved || !f.keeps {
		return nil
	}
	return f.save(f.record)
}

func (f *file) SaveWriter(session [16]byte) error {
	f.naming.Lock()
	defer f.naming.Unlock()
	r := f.record
	r.writer = session
	if !f.keeps {
		f.record = r
		return nil
	}
	return f.save(r)
}

func (f *file) save(r record) error {
	if err := f.commit(true, func() error { return setRecord(f.File, r) }); err != nil {
		if f.saved { // the next start must not find what was refused
			_ = setRecord(f.File, f.record) // the error of the commit is returned
		}
		return err
	}
	f.record, f.saved = r, true
	return nil
}

// Adopt makes a record for a file that is a copy, or was restored: with a new UUID, that of id, or with
// keep that of the record it has. Sessions that wrote to the volume before fail when they reconnect,
// as the file may be older than what they know. It returns the UUID.
func Adopt(path string, id uuid.UUID, keep bool) (uuid.UUID, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("cannot open the store: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("cannot stat the store: %w", err)
	}
	if !info.Mode().IsRegular() {
		return uuid.UUID{}, fmt.Errorf("store %s: must be a regular file; the UUID of a block device is its own, or that of --uuid", path)
	}
	if err := lock(f, false); err != nil {
		return uuid.UUID{}, err
	}
	old, found, err := loadRecord(f)
	if keep && err == nil && !found {
		err = fmt.Errorf("store %s: has no UUID to keep", path)
	}
	if keep && err != nil {
		return uuid.UUID{}, err
	}
	r := record{uuid: id, writer: uuid.New()} // no session has this one
	switch {
	case keep:
		r.uuid = old.uuid
	case id.IsZero():
		r.uuid = uuid.New()
	}
	if r.file, err = fileID(f); err != nil {
		return uuid.UUID{}, err
	}
	return r.uuid, saveRecord(f, r)
}
