// SPDX-License-Identifier: Apache-2.0

// Package access is who may connect: keys that two hosts share, in files, and lists of
// addresses (kmod/PROTOCOL.md section 2.1).
package access

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Length of a key in bytes.
const (
	keyMin = 16
	keyMax = 64
)

// Key is what two hosts share. It prints as nothing of it.
type Key []byte

func (Key) String() string   { return "(a key)" }
func (Key) GoString() string { return "(a key)" }

// ReadKey reads a key from a file that nobody else may read: its 16 to 64 printable characters,
// without white space around them.
func ReadKey(path string) (Key, error) {
	key, err := readKey(path)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return key, nil
}

func readKey(path string) (Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO is refused, not waited for
	if err != nil {
		return nil, errors.Unwrap(err) // ReadKey names the file
	}
	defer f.Close()
	info, err := f.Stat() // of the file that is read, not of one that has its name later
	if err != nil {
		return nil, err
	}
	if err := private(info); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return nil, fmt.Errorf("read it: %w", err)
	}
	key := bytes.TrimSpace(text)
	if len(key) < keyMin || len(key) > keyMax || bytes.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("a key is %d to %d printable characters without a space; make one with: openssl rand -hex 32", keyMin, keyMax)
	}
	return key, nil
}

// private says whether others than the user and root may have read or written the file.
func private(info os.FileInfo) error {
	stat := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return errors.New("it is no regular file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("its mode is %04o: others than its owner have a right to it; make a new key after: chmod 600", info.Mode().Perm())
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d: must be root's or yours", stat.Uid)
	}
	return nil
}
