// SPDX-License-Identifier: Apache-2.0

//go:build lab

package bridge

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
)

// systemd is the socket that systemd gives a service of Type=notify.
type systemd struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &systemd{t, path, conn}
}

// told waits for the next message and checks it.
func (s *systemd) told(want string) {
	s.t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(guest.Slow(20 * time.Second)))
	buf := make([]byte, 4096)
	n, err := s.conn.Read(buf)
	if err != nil || string(buf[:n]) != want {
		s.t.Errorf("systemd was told %q (%v), want %q", buf[:n], err, want)
	}
}

// At its start without an RDMA device the bridge waits under systemd, and with --wait. It serves when the device comes,
// again when it comes a second time, and says so.
func TestWaitsForItsDevice(t *testing.T) {
	port := guest.NextPort()
	for _, way := range []string{"--wait", "systemd"} {
		t.Run(way, func(t *testing.T) { waits(t, port, way) })
	}
}

func waits(t *testing.T, port int, way string) {
	const none = "no RDMA device of this host has the address"
	guest.RemoveDevice(t)
	there := false
	defer func() {
		if !there {
			guest.AddDevice(t)
		}
	}()
	b := &guest.Bridge{Addr: guest.AddrPort(t, port)}
	b.Cmd = exec.Command(guest.Binary(t, "krping-bridge"), "--listen", b.Addr, "--volume", "vol0=mem:,size=8MiB")
	s := newSystemd(t)
	if way == "--wait" {
		b.Cmd.Args = append(b.Cmd.Args, way)
	} else {
		b.Cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+s.path)
	}
	told := func(want string) {
		t.Helper()
		if way == "systemd" {
			s.told(want)
		}
	}
	b.Start(t, "not listening: "+none)
	told("READY=1\nSTATUS=not listening on " + b.Addr + ": " + none)
	guest.AddDevice(t)
	there = true
	listening := "STATUS=listening on " + b.Addr + " (" + guest.Device(t) + ")"
	told(listening)
	guest.Eventually(t, 10*time.Second, "the bridge listens", func() bool { return strings.Contains(b.Log.String(), "listening on "+b.Addr+" (") })
	connects(t, port)

	b.RemoveDevice(t)
	told("STATUS=not listening on " + b.Addr + ": the RDMA device is being removed")
	told("STATUS=not listening on " + b.Addr + ": " + none)
	guest.AddDevice(t)
	b.Returns(t)
	told(listening)
	connects(t, port)
	guest.Signal(t, b.Cmd, unix.SIGTERM)
	if err := b.Cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	told("STOPPING=1")
}

// connects connects to the volume, and leaves the device unused.
func connects(t *testing.T, port int) {
	t.Helper()
	conn, _, err := fakeclient.DialConn(t, port, fakeclient.Hello(1).Append(nil), fakeclient.Config)
	if err != nil {
		t.Fatal(err)
	}
	conn.Release()
}
