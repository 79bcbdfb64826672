// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lifecycle

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// What a caller asks for happens in the caller's network namespace: an address of another one is not
// reached, even if the namespaces have the same address.
func TestCallersNetworkNamespace(t *testing.T) {
	guest.Run(t, "ip", "netns", "add", "blue")
	t.Cleanup(func() { guest.Run(t, "ip", "netns", "del", "blue") })
	guest.StartBridge(t, port, guest.StorePath(t), "16MiB")
	ping := fmt.Sprintf("client,addr=%s,port=%d,count=1,timeout=2", guest.Addr(t), port+1)
	attach := fmt.Sprintf("client,addr=%s,port=%d,block=vol0", guest.Addr(t), port)
	serve := guest.ServeCommand(t, "volb", port+2, "backing=ram:1M")
	listen := fmt.Sprintf("server,addr=%s,port=%d,count=1,timeout=2", guest.Addr(t), port+3)

	refused := func(when string) {
		t.Helper()
		server := guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,count=1", guest.Addr(t), port+1))
		for _, command := range []string{ping, attach, serve, listen} {
			start := time.Now()
			err := commandIn(t, "blue", command)
			took := time.Since(start).Round(time.Millisecond)
			if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("%s: %s: %v after %v, want an error of the address", when, command, err, took)
			}
			t.Logf("%s: %s: %v after %v", when, command, err, took)
		}
		if err := guest.Command(ping, guest.Limit); err != nil {
			t.Errorf("%s: ping in the namespace of the device: %v", when, err)
		}
		if err := guest.Within(t, 20*time.Second, "the server ends", server); err != nil {
			t.Errorf("%s: server: %v", when, err)
		}
		if guest.Session(t, "vol0") != nil || guest.Volume(t, "volb") != nil {
			t.Errorf("%s: a session is left", when)
		}
	}
	refused("no route")
	guest.Run(t, "ip", "link", "add", "veth6", "type", "veth", "peer", "name", "eth6", "netns", "blue")
	guest.Run(t, "ip", "-n", "blue", "addr", "add", guest.Addr(t)+"/24", "dev", "eth6")
	guest.Run(t, "ip", "-n", "blue", "link", "set", "eth6", "up")
	refused("the same address without an RDMA device")

	dev := guest.Attach(t, port, "") // by a caller of the device's own namespace
	guest.WriteAndSync(t, guest.OpenDirect(t, dev))
}

// commandIn gives the module a command in a network namespace.
func commandIn(t *testing.T, namespace, command string) error {
	t.Helper()
	fd, err := unix.Open("/run/netns/"+namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is not to be used again
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- guest.Command(command, guest.Limit)
	}()
	return <-result
}
