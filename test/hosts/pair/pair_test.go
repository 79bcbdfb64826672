// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package pair tests what needs two hosts. It boots two VMs: VM 1 is the target, VM 2 has the block device.
package pair

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/internal/late"
	"krping/test/lab"
)

// pair is two VMs: a target and a host with the block device.
type pair struct {
	*hosts.Hosts
	storage, client *lab.VM
}

func boot(t *testing.T) *pair {
	t.Helper()
	h := hosts.Boot(t)
	return &pair{h, h.Lab.VM(0), h.Lab.VM(1)}
}

func (h *pair) bridge() *lab.Process {
	h.T.Helper()
	h.Sh(h.storage, "[ -e /run/vol0.img ] || krping-bridge create --store file:/run/vol0.img --size 16MiB")
	p := h.Spawn(h.storage, "krping-bridge --listen "+h.storage.Addr()+" --store file:/run/vol0.img >/run/bridge.log 2>&1")
	h.Eventually(20*time.Second, "krping-bridge listens", func() bool {
		_, err := h.Try(h.storage, "grep -q listening /run/bridge.log")
		return err == nil
	})
	return p
}

func TestPingsBlockIOAndKeysBetweenHosts(t *testing.T) {
	h := boot(t)
	server, client := h.storage, h.client

	t.Run("rping serves our client", func(t *testing.T) {
		rping := h.Spawn(server, "rping -s -a "+server.Addr()+" -p 9901 -C 100 -S 4096")
		h.Eventually(30*time.Second, "100 valid pings", func() bool {
			out, err := h.Try(client, "krpingctl client --addr "+server.Addr()+" --port 9901 --count 100 --size 4096 --validate")
			if err != nil && !strings.Contains(out, "refused") {
				t.Fatalf("client: %v\n%s", err, out)
			}
			return err == nil && strings.Contains(out, "100 pings of 4096 bytes, all data valid")
		})
		<-rping.Done()
	})

	t.Run("our server serves rping", func(t *testing.T) {
		ours := h.Spawn(server, "krpingctl server --addr "+server.Addr()+" --port 9902 --validate")
		h.Eventually(30*time.Second, "the server listens", func() bool {
			return strings.Contains(h.Sh(server, "cat /proc/krping"), "listen")
		})
		time.Sleep(200 * time.Millisecond)
		h.Sh(client, "rping -c -a "+server.Addr()+" -p 9902 -C 100 -S 4096")
		if err := ours.Wait(t.Context()); err != nil {
			t.Errorf("server: %v", err)
		}
	})

	t.Run("verified I/O", func(t *testing.T) {
		h.bridge()
		h.Sh(client, "krpingctl client --addr "+server.Addr()+" --block vol0")
		h.Sh(client, "fio --name=mixed --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randrw --bsrange=512-1M --blockalign=512 "+
			"--iodepth=32 --numjobs=2 --size=8M --offset_increment=8M --io_size=4M --verify=crc32c --verify_fatal=1 --group_reporting")
		h.Sh(client, "krpingctl verify /dev/krping0")
		device := h.Sh(client, "sha256sum < /dev/krping0")
		if stored := h.Sh(server, "sha256sum < /run/vol0.img"); stored != device {
			t.Errorf("the device has sha256 %s, the store %s", device, stored)
		}
		h.Sh(client, "krpingctl stop vol0")
	})

	t.Run("keys", func(t *testing.T) {
		for _, vm := range []*lab.VM{server, client} {
			h.Sh(vm, "umask 077; echo a0b1c2d3e4f5061728394a5b6c7d8e9f | tee /run/vol1.key >/dev/null; echo 00112233445566778899aabbccddeeff > /run/other.key")
		}
		h.Sh(server, "krpingctl server --addr "+server.Addr()+" --port 9906 --block vol1 --backing ram:16M --key-file /run/vol1.key --allow "+client.Addr())
		attach := "krpingctl client --addr " + server.Addr() + " --port 9906 --block vol1"
		for flag, says := range map[string]string{"": "key", " --key-file /run/other.key": "key"} {
			var exit *lab.ExitError
			if out, err := h.Try(client, attach+flag); !errors.As(err, &exit) || exit.Code != 5 || !strings.Contains(out, says) {
				t.Errorf("%q: %v, want exit code 5\n%s", flag, err, out)
			}
		}
		h.Sh(client, attach+" --key-file /run/vol1.key && krpingctl write /dev/krping0 --size 4MiB --direct && krpingctl verify /dev/krping0 && krpingctl stop vol1")
		h.Sh(server, "krpingctl stop --target vol1")
	})

	t.Run("two interfaces in one subnet", func(t *testing.T) { testTwoInterfaces(h.in(t)) })
	t.Run("type of service", func(t *testing.T) { testTOS(h.in(t)) })
	t.Run("one writer", func(t *testing.T) { testOneWriter(h.in(t)) })
}

// Each RTU of the client, which confirms a connection, is lost. The first message on the connection replaces it.
func TestLostRTU(t *testing.T) {
	h := boot(t)
	server, client := h.storage, h.client
	const (
		rtu = "match ip protocol 17 0xff match ip dport 4791 0xffff match u8 0x07 0xff at 49 match u16 0x0014 0xffff at 64"
		at  = " --port 9907 --block vol7"
	)
	// Not at the sender: rxe of 6.12 moves a queue pair to the error state if the network device refuses its packet.
	h.Sh(server, "modprobe -a sch_ingress cls_u32 act_gact && tc qdisc add dev eth0 clsact && tc filter add dev eth0 ingress protocol ip u32 "+rtu+" action drop")
	h.Sh(server, "krpingctl server --addr "+server.Addr()+at+" --backing ram:16M")
	h.Sh(client, "krpingctl client --addr "+server.Addr()+at)
	time.Sleep(6 * time.Second) // longer than a target waits for the RTU
	h.Sh(client, "krpingctl write /dev/krping0 --size 4MiB --direct && krpingctl verify /dev/krping0")
	if session := h.Sh(client, "cat /proc/krping_sessions"); !strings.Contains(session, "state=live") || !strings.Contains(session, " reconnects=0 ") {
		late.ErrorfIf(t, strings.Contains(h.Sh(client, "dmesg"), "the target was silent on queue"),
			"the connection was lost: %s\n%s", session, h.Sh(server, "dmesg | tail"))
	}
	if filter := h.Sh(server, "tc -s filter show dev eth0 ingress"); strings.Contains(filter, "(dropped 0,") || !strings.Contains(filter, "(dropped ") {
		t.Errorf("nothing was dropped: %s", filter)
	}
	h.Sh(client, "krpingctl stop vol7")
	h.Sh(server, "krpingctl stop --target vol7")
}

// A bond fails over to a network device that may belong to another RDMA device. The volume listens there.
func TestVolumeListensAfterBondFailover(t *testing.T) {
	h := boot(t)
	vm, at := h.storage, " --addr 10.9.0.1 --port 9908 --block vol8"
	h.Sh(vm, `set -e
modprobe -a bonding veth
ip link add bond8 type bond mode active-backup fail_over_mac active miimon 100
for i in 1 2; do
	ip link add s$i type veth peer name p$i
	ip link set p$i up
	ip link set s$i master bond8
done
ip addr add 10.9.0.1/24 dev bond8
ip link set bond8 up
krpingctl link add rxe8 --netdev bond8
krpingctl server`+at+` --backing ram:16M
ip link set bond8 type bond active_slave s1
krpingctl client`+at)
	h.Sh(vm, "ip link set bond8 type bond active_slave s2")
	h.Eventually(10*time.Second, "the volume is served again", func() bool {
		return strings.Contains(h.Sh(vm, "dmesg"), "] serving again")
	})
	h.Sh(vm, "krpingctl write /dev/krping0 --size 4MiB --direct && krpingctl verify /dev/krping0")
	h.Sh(vm, "krpingctl stop vol8 && krpingctl stop --target vol8")
}

// The target's host dies as in a power failure: I/O fails after the timeout, pings end, nothing hangs.
func TestTargetHostKilled(t *testing.T) {
	h := boot(t)
	h.bridge()
	h.Spawn(h.storage, "krpingctl server --addr "+h.storage.Addr()+" --port 9903")
	h.Sh(h.client, "krpingctl client --addr "+h.storage.Addr()+" --block vol0 --timeout 5s")
	// Few packets are on their way. If the socket between the VMs is full when one ends, QEMU leaves the next packet in the
	// other's transmit ring for good, where it holds Soft-RoCE's queue pairs: destroying them takes 50 s and warns.
	load := h.Spawn(h.client, "fio --name=load --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=4 --time_based --runtime=120 >/run/fio.log 2>&1")
	ping := h.Spawn(h.client, "krpingctl client --addr "+h.storage.Addr()+" --port 9903 --validate >/run/ping.log 2>&1")
	time.Sleep(3 * time.Second)
	h.storage.Kill()
	killed := time.Now()
	for name, p := range map[string]*lab.Process{"fio": load, "ping": ping} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := p.Wait(ctx)
		cancel()
		var exit *lab.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("%s: %v, want it to exit with an error", name, err)
		}
		t.Logf("%s ended %v after the host was killed: %v", name, time.Since(killed).Round(time.Second), err)
		if name == "ping" && exit.Code != 5 {
			t.Errorf("ping: exit code %d, want 5", exit.Code)
		}
	}
	h.Eventually(30*time.Second, "the session has failed", func() bool {
		return strings.Contains(h.Sh(h.client, "cat /proc/krping_sessions"), "state=failed")
	})
	start := time.Now()
	h.Sh(h.client, "krpingctl stop vol0 --force")
	if took := time.Since(start); took > 5*time.Second {
		late.Errorf(t, "stop took %v", took)
	}
	if left := h.Sh(h.client, "cat /proc/krping; ls /dev/krping* 2>/dev/null; ps -eo stat,comm | awk '$1 ~ /^D/'"); left != "" {
		t.Errorf("left behind: %s", left)
	}
	h.Sh(h.client, "rmmod rdma_krping")
}

// The client's host dies with a busy and two idle sessions. The bridge serves another client, which finds every
// block intact. Both kinds of target detect the loss of the idle sessions.
func TestClientHostKilled(t *testing.T) {
	h := boot(t)
	h.bridge()
	h.Sh(h.client, "krpingctl client --addr "+h.storage.Addr()+" --block vol0")
	h.Sh(h.client, "krpingctl write /dev/krping0 --size 8MiB --seed 3 --direct")
	h.Spawn(h.client, "fio --name=load --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randwrite --bs=64k --iodepth=16 --offset=16M --size=32M --time_based --runtime=60")
	time.Sleep(2 * time.Second)
	h.Sh(h.storage, "krpingctl server --addr "+h.storage.Addr()+" --port 9904 --block kernel --backing ram:16M")
	h.Spawn(h.storage, "krping-bridge --listen "+h.storage.Addr()+":9905 --name user --store mem: --size 16MiB >/run/user.log 2>&1")
	h.Eventually(20*time.Second, "the second bridge listens", func() bool {
		_, err := h.Try(h.storage, "grep -q listening /run/user.log")
		return err == nil
	})
	h.Sh(h.client, "krpingctl client --addr "+h.storage.Addr()+" --port 9904 --block kernel; krpingctl client --addr "+h.storage.Addr()+" --port 9905 --block user")
	h.client.Kill()
	time.Sleep(time.Second)
	out := h.Sh(h.storage, fmt.Sprintf("krpingctl client --addr %s --block vol0 --take-over && krpingctl verify /dev/krping0 --size 8MiB --pattern random --seed 3 && krpingctl verify /dev/krping0 && krpingctl stop vol0", h.storage.Addr()))
	if !strings.Contains(out, "device, target and what was written agree") {
		t.Errorf("output: %s", out)
	}
	h.Eventually(time.Minute, "the kernel's target has no client", func() bool {
		return strings.Contains(h.Sh(h.storage, "grep name=kernel /proc/krping_sessions"), " queues=0 ")
	})
	h.Eventually(time.Minute, "the bridge has no client", func() bool {
		_, err := h.Try(h.storage, "test $(grep -c disconnected /run/user.log) -ge 2")
		return err == nil
	})
	h.Sh(h.storage, "krpingctl stop --target kernel")
}
