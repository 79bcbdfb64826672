// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package pair tests what crosses hosts: it runs here and boots two VMs. VM 1 stores, VM
// 2 has the block device.
package pair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krping/test/lab"
)

// hosts are two VMs with the module loaded.
type hosts struct {
	t               *testing.T
	lab             *lab.Lab
	storage, client *lab.VM
}

func boot(t *testing.T) *hosts {
	t.Helper()
	kernel := os.Getenv("KERNEL")
	if kernel == "" {
		t.Fatal("KERNEL is not set: 6.1 or 6.12")
	}
	out := filepath.Join(lab.Build(), "logs", kernel, t.Name())
	l, err := lab.Start(t.Context(), lab.Config{Kernel: kernel, VMs: 2, Out: out})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if report := l.Complaints(); report != "" {
			t.Error(report)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.LoadModule(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &hosts{t, l, l.VM(0), l.VM(1)}
}

// sh runs a script to its end; the build's programs are in its PATH.
func (h *hosts) sh(vm *lab.VM, script string) string {
	h.t.Helper()
	out, err := h.try(vm, script)
	if err != nil {
		h.t.Fatalf("%s: %s: %v\n%s", vm.Addr(), script, err, out)
	}
	return out
}

func (h *hosts) try(vm *lab.VM, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return vm.Output(ctx, "PATH="+lab.Build()+":$PATH; "+script)
}

// spawn leaves a script running.
func (h *hosts) spawn(vm *lab.VM, script string) *lab.Process {
	h.t.Helper()
	p, err := vm.Start(lab.Cmd{Argv: []string{"sh", "-c", "PATH=" + lab.Build() + ":$PATH; exec " + script}})
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

func (h *hosts) bridge() *lab.Process {
	h.t.Helper()
	p := h.spawn(h.storage, "krping-bridge --listen "+h.storage.Addr()+" --store file:/run/vol0.img --size 64MiB >/run/bridge.log 2>&1")
	h.eventually(20*time.Second, "krping-bridge listens", func() bool {
		_, err := h.try(h.storage, "grep -q listening /run/bridge.log")
		return err == nil
	})
	return p
}

func (h *hosts) eventually(limit time.Duration, what string, condition func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if condition() {
			return
		}
	}
	h.t.Fatalf("not within %v: %s", limit, what)
}

func TestTwoHosts(t *testing.T) {
	h := boot(t)
	server, client := h.storage, h.client

	t.Run("rping serves our client", func(t *testing.T) {
		rping := h.spawn(server, "rping -s -a "+server.Addr()+" -p 9901 -C 1000 -S 4096")
		h.eventually(30*time.Second, "1000 valid pings", func() bool {
			out, err := h.try(client, "krpingctl client --addr "+server.Addr()+" --port 9901 --count 1000 --size 4096 --validate")
			if err != nil && !strings.Contains(out, "refused") {
				t.Fatalf("client: %v\n%s", err, out)
			}
			return err == nil && strings.Contains(out, "1000 pings of 4096 bytes, all data valid")
		})
		<-rping.Done()
	})

	t.Run("our server serves rping", func(t *testing.T) {
		ours := h.spawn(server, "krpingctl server --addr "+server.Addr()+" --port 9902 --validate")
		h.eventually(30*time.Second, "it listens", func() bool {
			return strings.Contains(h.sh(server, "cat /proc/krping"), "listen")
		})
		time.Sleep(200 * time.Millisecond)
		h.sh(client, "rping -c -a "+server.Addr()+" -p 9902 -C 1000 -S 4096")
		if err := ours.Wait(t.Context()); err != nil {
			t.Errorf("server: %v", err)
		}
	})

	t.Run("verified I/O", func(t *testing.T) {
		h.bridge()
		h.sh(client, "krpingctl client --addr "+server.Addr()+" --block vol0")
		h.sh(client, "fio --name=mixed --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randrw --bsrange=512-1M --blockalign=512 "+
			"--iodepth=32 --numjobs=2 --size=32M --offset_increment=32M --io_size=16M --verify=crc32c --verify_fatal=1 --group_reporting")
		h.sh(client, "krpingctl verify /dev/krping0")
		device := h.sh(client, "sha256sum < /dev/krping0")
		if stored := h.sh(server, "sha256sum < /run/vol0.img"); stored != device {
			t.Errorf("the device has sha256 %s, the store %s", device, stored)
		}
		h.sh(client, "krpingctl stop vol0")
	})
}

// The storage host dies as in a power failure: I/O ends with an error after the timeout,
// a ping ends too, nothing hangs.
func TestStorageHostKilled(t *testing.T) {
	h := boot(t)
	h.bridge()
	h.spawn(h.storage, "krpingctl server --addr "+h.storage.Addr()+" --port 9903")
	h.sh(h.client, "krpingctl client --addr "+h.storage.Addr()+" --block vol0 --timeout 5s")
	load := h.spawn(h.client, "fio --name=load --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randwrite --bs=16k --iodepth=16 --time_based --runtime=120 >/run/fio.log 2>&1")
	ping := h.spawn(h.client, "krpingctl client --addr "+h.storage.Addr()+" --port 9903 --validate >/run/ping.log 2>&1")
	time.Sleep(3 * time.Second)
	h.storage.Kill()
	killed := time.Now()
	for name, p := range map[string]*lab.Process{"fio": load, "ping": ping} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := p.Wait(ctx)
		cancel()
		var exit *lab.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s: %v, want a failure of its own", name, err)
		}
		t.Logf("%s ended %v after the host's death: %v", name, time.Since(killed).Round(time.Second), err)
		if name == "ping" && exit.Code != 5 {
			t.Errorf("ping: exit code %d, want 5", exit.Code)
		}
	}
	h.eventually(30*time.Second, "the session fails for good", func() bool {
		return strings.Contains(h.sh(h.client, "cat /proc/krping_sessions"), "state=failed")
	})
	start := time.Now()
	h.sh(h.client, "krpingctl stop vol0 --force")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("stop took %v", took)
	}
	if left := h.sh(h.client, "cat /proc/krping; ls /dev/krping* 2>/dev/null; ps -eo stat,comm | awk '$1 ~ /^D/'"); left != "" {
		t.Errorf("left behind: %s", left)
	}
	h.sh(h.client, "rmmod rdma_krping")
}

// The client's host dies under load: the bridge lives on and serves another client, which
// finds every block whole.
func TestClientHostKilled(t *testing.T) {
	h := boot(t)
	h.bridge()
	h.sh(h.client, "krpingctl client --addr "+h.storage.Addr()+" --block vol0")
	h.sh(h.client, "krpingctl write /dev/krping0 --size 8MiB --seed 3 --direct")
	h.spawn(h.client, "fio --name=load --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randwrite --bs=64k --iodepth=16 --offset=16M --size=32M --time_based --runtime=60")
	time.Sleep(2 * time.Second)
	h.client.Kill()
	time.Sleep(time.Second)
	out := h.sh(h.storage, fmt.Sprintf("krpingctl client --addr %s --block vol0 && krpingctl verify /dev/krping0 --size 8MiB --pattern random --seed 3 && krpingctl verify /dev/krping0 && krpingctl stop vol0", h.storage.Addr()))
	if !strings.Contains(out, "device, target and what was written agree") {
		t.Errorf("output: %s", out)
	}
}
