// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// sharedPort has volumes of the module at one address and port.
type sharedPort struct {
	t    *testing.T
	port int
}

func (p sharedPort) serve(name string, c targets.Config) *targets.Served {
	p.t.Helper()
	c.Name, c.Port, c.Store = name, p.port, "ram:8M"
	return targets.Module.Serve(p.t, c)
}

// attach attaches a volume until detach, or the end of the test.
func (p sharedPort) attach(name string, more ...string) *disk {
	p.t.Helper()
	args := []string{"client", "--addr", guest.Addr(p.t), "--port", strconv.Itoa(p.port), "--block", name, "--queues", "2"}
	d := &disk{t: p.t, name: name, data: make([]byte, 64<<10), attach: append(args, more...)}
	_, _ = rand.Read(d.data) // never fails
	guest.MustKrpingctl(p.t, d.attach...)
	p.t.Cleanup(func() {
		if guest.Session(p.t, name) != nil {
			d.detach()
		}
	})
	return d
}

func (p sharedPort) wantRefused(name string, want error) {
	p.t.Helper()
	command := fmt.Sprintf("client,addr=%s,port=%d,block=%s", guest.Addr(p.t), p.port, name)
	if err := guest.Command(command, guest.Limit); !errors.Is(err, want) {
		p.t.Errorf("attach %s: %v, want %v", name, err, want)
	}
}

// disk is an attached volume with data of its own.
type disk struct {
	t      *testing.T
	name   string
	data   []byte
	attach []string // arguments of krpingctl
}

func (d *disk) detach() {
	d.t.Helper()
	if err := guest.Command("stop,force,block="+d.name, guest.Limit); err != nil {
		d.t.Error(err)
	}
}

func (d *disk) open() *os.File {
	d.t.Helper()
	return guest.OpenDirect(d.t, "/dev/"+guest.Session(d.t, d.name)["dev"])
}

func (d *disk) write() {
	d.t.Helper()
	buf, f := guest.Aligned(d.t, len(d.data)), d.open()
	defer f.Close()
	copy(buf, d.data)
	if _, err := f.WriteAt(buf, 0); err != nil {
		d.t.Errorf("write to %s: %v", d.name, err)
	}
}

func (d *disk) check() {
	d.t.Helper()
	buf, f := guest.Aligned(d.t, len(d.data)), d.open()
	defer f.Close()
	if _, err := f.ReadAt(buf, 0); err != nil || !bytes.Equal(buf, d.data) {
		d.t.Errorf("read %s: %v, or other data than was written", d.name, err)
	}
}

// Volumes with the same address and port share it. Each has its own data, key, addresses, end and counters.
func TestVolumesShareAPort(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	p := sharedPort{t, guest.NextPort()}
	plain, keyed := p.serve("plain", targets.Config{}), p.serve("keyed", targets.Config{Key: secret})
	p.serve("elsewhere", targets.Config{Allow: "192.0.2.1"})
	disks := []*disk{p.attach("plain"), p.attach("keyed", "--key-file", targets.KeyFile(t, secret))}
	for _, d := range disks {
		d.write()
	}
	p.wantRefused("elsewhere", unix.ECONNREFUSED)
	p.wantRefused("nosuch", unix.ENOENT)
	disks[1].detach()
	p.wantRefused("keyed", unix.ENOKEY)
	guest.MustKrpingctl(t, disks[1].attach...)
	// The key's challenge is no rejection. Who asks for no volume counts for all of them.
	for name, want := range map[string]string{"plain": "1", "keyed": "2", "elsewhere": "2"} {
		guest.WantFields(t, guest.Volume(t, name), "rejected", want)
	}
	for _, d := range disks {
		d.check()
	}

	guest.RemoveDevice(t)
	for _, name := range []string{"plain", "keyed"} {
		guest.Eventually(t, 10*time.Second, name+" has no device", func() bool { return guest.Volume(t, name)["state"] == "no_device" })
	}
	if err := guest.Command(guest.ServeCommand(t, "late", p.port, "backing=ram:8M"), guest.Limit); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("another volume without a device: %v, want EADDRNOTAVAIL", err)
	}
	guest.AddDevice(t)
	for _, d := range disks {
		d.check() // waits for the volume
	}

	disks[0].detach()
	plain.Stop()
	disks[1].check()
	p.wantRefused("plain", unix.ENOENT)
	late := p.serve("late", targets.Config{})
	p.attach("late").write()
	disks[1].check()
	keyed.Stop()
	late.Stop()
	if !guest.Listens(t, p.port) {
		t.Error("nothing listens for the last volume")
	}
	guest.StopServing(t, "elsewhere")
	if guest.Listens(t, p.port) {
		t.Error("the port is in use without a volume")
	}
}

// Volumes begin and end at one port at the same time: none finds it in use, and nothing is left of it.
func TestVolumesComeAndGoAtAPort(t *testing.T) {
	guest.CheckResources(t)
	port := guest.NextPort()
	var all errgroup.Group
	for i := range 4 {
		name := fmt.Sprintf("vol%d", i)
		serve := guest.ServeCommand(t, name, port, "backing=ram:1M")
		attach := fmt.Sprintf("client,addr=%s,port=%d,block=%s,queues=1,depth=4", guest.Addr(t), port, name)
		all.Go(func() error {
			for n := range 8 {
				commands := []string{serve, "stop,target,block=" + name}
				if n%2 == i%2 {
					commands = []string{serve, attach, "stop,block=" + name, "stop,target,block=" + name}
				}
				for _, c := range commands {
					if err := guest.Command(c, guest.Limit); err != nil {
						return fmt.Errorf("%s: %w", c, err)
					}
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	if guest.Listens(t, port) {
		t.Error("the port is in use without a volume")
	}
}

// A volume joins others only where their address still is. It finds out that the address was removed, which rdma_cm does
// not tell them.
func TestAddressOfVolumesIsRemoved(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	const addr = "192.168.77.50"
	port := guest.NextPort()
	add := func() { guest.Run(t, "ip", "addr", "add", addr+"/24", "dev", "eth0") }
	remove := func() { guest.Run(t, "ip", "addr", "del", addr+"/24", "dev", "eth0") }
	serve := func(name string) error {
		return guest.Command(fmt.Sprintf("server,addr=%s,port=%d,block=%s,backing=ram:8M", addr, port, name), guest.Limit)
	}
	add()
	defer remove()
	if err := serve("vol0"); err != nil {
		t.Fatal(err)
	}
	defer guest.StopServing(t, "vol0")
	remove()
	if err := serve("vol1"); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("a volume at an address that was removed: %v, want EADDRNOTAVAIL", err)
	}
	guest.WantFields(t, guest.Volume(t, "vol0"), "state", "no_device")
	add()
	guest.VolumeBecomes(t, "live")
	if err := serve("vol1"); err != nil {
		t.Fatal(err)
	}
	guest.StopServing(t, "vol1")
}
