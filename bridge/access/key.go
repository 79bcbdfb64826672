// SPDX-License-Identifier: Apache-2.0

// Package access decides who may connect, by keys and lists of addresses (kmod/PROTOCOL.md
// section 2.1).
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

// Limits of a key's length in bytes.
const (
	keyMin = 16
	keyMax = 64
)

// Key is a secret that two hosts share. Printing it does not reveal it.
type Key []byte

func (Key) String() string   { return "(a key)" }
func (Key) GoString() string { return "(a key)" }

// ReadKey reads a key from a file that only its owner may read: 16 to 64 printable characters.
// White space around them is ignored.
func ReadKey(path string) (Key, error) {
	key, err := readKey(path)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return key, nil
}

func readKey(path string) (Key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // does not wait for the writer of a FIFO
	if err != nil {
		return nil, errors.Unwrap(err) // ReadKey names the file
	}
	defer f.Close()
	info, err := f.Stat() // of the open file: the name may belong to another file by now
	if err != nil {
		return nil, err
	}
	if err := private(info); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	key := bytes.TrimSpace(text)
	if len(key) < keyMin || len(key) > keyMax || bytes.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("must be %d to %d printable characters without spaces; make one with: openssl rand -hex 32", keyMin, keyMax)
	}
	return key, nil
}

// private returns an error if other users may have read or written the file.
func private(info os.FileInfo) error {
	stat := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return errors.New("must be a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("mode %04o lets other users read or write it; run chmod 600 and make a new key", info.Mode().Perm())
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("belongs to user %d: must be owned by root or you", stat.Uid)
	}
	return nil
}
