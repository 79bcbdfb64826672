// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package access tests inside one VM who may connect: keys and lists of addresses, and what a client of one volume or
// session can do to another, or leaves behind when it disconnects.
package access

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

const (
	secret  = "the-secret-of-vol0-0123456789"
	another = "another-secret-0123456789abcd"
	size    = 8 << 20 // of the volumes
)

// commandWith runs a command in a thread that has the key, if it is not "", in its keyring.
func commandWith(description, key, command string) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the keyring ends with the thread
		if key != "" {
			if _, err := unix.AddKey("logon", description, []byte(key), unix.KEY_SPEC_THREAD_KEYRING); err != nil {
				ended <- err
				return
			}
		}
		ended <- guest.Command(command, guest.Limit)
	}()
	return <-ended
}

// serve serves a new volume with a key unless it is "".
func serve(t *testing.T, target targets.Target, key string) *targets.Served {
	t.Helper()
	return target.ServeNew(t, size, targets.Config{Key: key, Shared: true})
}

// serveAgain stops a volume, and serves it with another key or list of addresses.
func serveAgain(t *testing.T, target targets.Target, s *targets.Served, key, allow string) *targets.Served {
	t.Helper()
	s.Stop()
	c := s.Config
	c.Key, c.Allow = key, allow
	return target.Serve(t, c)
}

func clientCommand(t *testing.T, port int, options string) string {
	t.Helper()
	return fmt.Sprintf("client,addr=%s,port=%d,block=vol0%s", guest.Addr(t), port, options)
}

// attach attaches vol0 by krpingctl until the end of the test.
func attach(t *testing.T, port int, args ...string) string {
	t.Helper()
	dev := strings.TrimSpace(guest.MustKrpingctl(t, append([]string{"client", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0"}, args...)...))
	t.Cleanup(func() {
		if guest.Session(t, "vol0") != nil {
			guest.MustKrpingctl(t, "stop", "--force", "vol0")
		}
	})
	return dev
}

// writeAndVerify writes test data and compares both ends.
func writeAndVerify(t *testing.T, dev string) {
	t.Helper()
	guest.MustKrpingctl(t, "write", dev, "--size", "1MiB", "--direct")
	guest.MustKrpingctl(t, "verify", dev)
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
