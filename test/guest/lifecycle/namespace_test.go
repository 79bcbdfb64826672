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

// A command uses its caller's network namespace: it does not reach an address of another namespace, even if both have the
// same address.
func TestCallersNetworkNamespace(t *testing.T) {
	guest.Run(t, "ip", "netns", "add", "blue")
	t.Cleanup(func() { guest.Run(t, "ip", "netns", "del", "blue") })
	guest.StartBridge(t, port, guest.StorePath(t), "16MiB")
	ping := fmt.Sprintf("client,addr=%s,port=%d,count=1", guest.Addr(t), port+1)
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
				t.Errorf("%s: %s: %v after %v, want an address error", when, command, err, took)
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
	defer guest.Run(t, "ip", "link", "del", "veth6") // the namespace is removed some time later
	guest.Run(t, "ip", "-n", "blue", "addr", "add", guest.Addr(t)+"/24", "dev", "eth6")
	guest.Run(t, "ip", "-n", "blue", "link", "set", "eth6", "up")
	refused("the same address without an RDMA device")

	dev := guest.Attach(t, port, "") // the caller is in the device's namespace
	guest.WriteAndSync(t, guest.OpenDirect(t, dev))
}

// In a namespace with an RDMA device, clients connect and volumes listen in that namespace, also after their callers have
// ended and the connections are made again.
//
// rxe looks up routes in the initial namespace, whatever namespace its network device is in. So the initial namespace gets
// an interface with the same index and address. No packet uses it: both ends of the connections are on one device, which
// sends the packets to itself.
func TestConnectionsInANamespace(t *testing.T) {
	const (
		addr  = "10.7.0.1"
		index = "66"
	)
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	guest.Run(t, "ip", "link", "add", "veth6", "index", index, "type", "veth", "peer", "name", "eth6", "index", index, "netns", "blue")
	guest.Run(t, "ip", "-n", "blue", "addr", "add", addr+"/24", "dev", "eth6")
	guest.Run(t, "ip", "-n", "blue", "link", "set", "eth6", "up")
	guest.Run(t, "ip", "addr", "add", addr+"/24", "dev", "veth6")
	guest.Run(t, "ip", "link", "set", "veth6", "up")
	defer guest.Run(t, "ip", "link", "del", "veth6")
	addDevice := func() {
		in(t, "blue", func() { guest.MustKrpingctl(t, "link", "add", "rxe6", "--netdev", "eth6") })
	}
	removeDevice := func() { guest.Run(t, "rdma", "link", "del", "rxe6") }
	addDevice()
	defer removeDevice()

	store := guest.StorePath(t)
	var bridge *guest.Bridge
	in(t, "blue", func() {
		bridge = guest.StartBridge(t, port, store, "16MiB", "--listen", fmt.Sprintf("%s:%d", addr, port))
	})
	for _, c := range []struct{ begin, name, end string }{
		{fmt.Sprintf("server,addr=%s,port=%d,block=vol1,backing=ram:1M", addr, port+1), "vol1", ",target"},
		{fmt.Sprintf("client,addr=%s,port=%d,block=vol0", addr, port), "vol0", ",force"},
		{fmt.Sprintf("client,addr=%s,port=%d,block=vol1", addr, port+1), "vol1", ",force"},
	} {
		if err := guest.Command(c.begin, guest.Limit); !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("%s from another namespace: %v, want an address error", c.begin, err)
		}
		if err := commandIn(t, "blue", c.begin); err != nil {
			t.Fatalf("%s: %v", c.begin, err)
		}
		defer stop(t, c.name, c.end)
	}
	works := func(name string) {
		t.Helper()
		guest.Eventually(t, 20*time.Second, name+" is live", func() bool { return guest.Session(t, name)["state"] == "live" })
		dev := guest.OpenDirect(t, "/dev/"+guest.Session(t, name)["dev"])
		defer dev.Close()
		guest.WriteAndSync(t, dev)
	}
	works("vol0")
	works("vol1")
	bridge.LosesDevice(t, removeDevice)
	addDevice()
	bridge.Returns(t)
	for _, name := range []string{"vol0", "vol1"} {
		works(name)
		if s := guest.Session(t, name); s["reconnects"] == "0" || s["ibdev"] != "rxe6" {
			t.Errorf("%s did not reconnect over the device: %v", name, s)
		}
	}
}

// in calls do in a network namespace, in a thread that has ended when in returns.
func in(t *testing.T, namespace string, do func()) {
	t.Helper()
	fd, err := unix.Open("/run/netns/"+namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread must not be used again
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		do()
	}()
	<-done
}

// commandIn writes a command to /proc/krping in a network namespace.
func commandIn(t *testing.T, namespace, command string) (err error) {
	t.Helper()
	in(t, namespace, func() { err = guest.Command(command, guest.Limit) })
	return err
}
