// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces small files so that a crash leaves the old content or the new one.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

var sync = (*os.File).Sync // tests change it

// Write replaces the file at path, or makes it, and puts it on stable storage. Its mode is 0600. After an
// error nothing is left behind, and the old file is as it was; the new one is there if only its directory
// could not be synced. A symbolic link is replaced, not followed.
func Write(path string, content []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = sync(f)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return SyncDir(dir)
}

// SyncDir puts the names in a directory on stable storage. File systems that sync no directories are no
// error.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := sync(dir); !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
