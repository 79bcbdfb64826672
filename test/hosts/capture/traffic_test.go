// SPDX-License-Identifier: Apache-2.0

//go:build lab

package capture

import (
	"fmt"
	"strings"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/lab"
)

// traffic makes traffic between two VMs: VM 1 is the server, VM 2 the client.
type traffic struct {
	*hosts.Hosts
	server, client *lab.VM
}

const (
	pingPort = 9998
	rdmaPort = 4421 // of NVMe over fabrics
	tcpPort  = 4420
)

// pings runs krping's ping-pong with small data and with data of several packets.
func (h traffic) pings() {
	for _, size := range []string{"64", "65536"} {
		server := h.Spawn(h.server, fmt.Sprintf("krpingctl server --addr %s --port %d --size 65536 --validate", h.server.Addr(), pingPort))
		h.Eventually(30*time.Second, "the server listens", func() bool { return strings.Contains(h.Sh(h.server, "cat /proc/krping"), "listen") })
		h.Sh(h.client, fmt.Sprintf("krpingctl client --addr %s --port %d --size %s --count 10 --validate --timeout 40s", h.server.Addr(), pingPort, size))
		if err := server.Wait(h.T.Context()); err != nil {
			h.T.Error(err)
		}
	}
}

// block attaches a disk of the kernel's target and calls run for I/O on it.
func (h traffic) block(run func(device string)) {
	h.Sh(h.server, fmt.Sprintf("krpingctl server --addr %s --block vol0 --backing ram:64M", h.server.Addr()))
	device := strings.TrimSpace(h.Sh(h.client, fmt.Sprintf("krpingctl client --addr %s --block vol0 --queues 1", h.server.Addr())))
	run(device)
	h.Sh(h.client, "krpingctl stop vol0")
	h.Sh(h.server, "krpingctl stop --target vol0")
}

// nvme connects a disk by NVMe over fabrics, with the kernel's host and target, and calls run for I/O on it.
func (h traffic) nvme(transport string, port int, run func(device string)) {
	const nqn = "capture"
	h.Sh(h.server, fmt.Sprintf(`set -e
modprobe -a nvmet nvmet-%[1]s
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
if [ ! -b /dev/nullb0 ]; then
	modprobe null_blk nr_devices=0
	mkdir /sys/kernel/config/nullb/nullb0
	cd /sys/kernel/config/nullb/nullb0
	echo 64 > size
	echo 1 > memory_backed
	echo 1 > power
fi
cd /sys/kernel/config/nvmet
mkdir -p subsystems/%[2]s
echo 1 > subsystems/%[2]s/attr_allow_any_host
mkdir subsystems/%[2]s/namespaces/1
echo /dev/nullb0 > subsystems/%[2]s/namespaces/1/device_path
echo 1 > subsystems/%[2]s/namespaces/1/enable
mkdir ports/%[3]d
echo %[1]s > ports/%[3]d/addr_trtype
echo ipv4 > ports/%[3]d/addr_adrfam
echo %[4]s > ports/%[3]d/addr_traddr
echo %[3]d > ports/%[3]d/addr_trsvcid
echo 16384 > ports/%[3]d/param_inline_data_size
ln -s /sys/kernel/config/nvmet/subsystems/%[2]s ports/%[3]d/subsystems/%[2]s`, transport, nqn, port, h.server.Addr()))
	device := h.Sh(h.client, fmt.Sprintf(`set -e
modprobe nvme_core multipath=N
modprobe nvme-%[1]s
echo transport=%[1]s,traddr=%[2]s,trsvcid=%[3]d,nqn=%[4]s,nr_io_queues=1,queue_size=32,keep_alive_tmo=120 > /dev/nvme-fabrics
controller=$(basename $(dirname $(grep -lx %[4]s /sys/class/nvme/*/subsysnqn)))
for i in $(seq 100); do test -b /dev/${controller}n1 && break; sleep 0.1; done
udevadm settle 2>/dev/null || sleep 0.5
echo /dev/${controller}n1`, transport, h.server.Addr(), port, nqn))
	run(strings.TrimSpace(device))
	h.Sh(h.client, "for c in /sys/class/nvme/*/delete_controller; do echo 1 > $c; done")
	h.Sh(h.server, fmt.Sprintf("cd /sys/kernel/config/nvmet && rm ports/%[1]d/subsystems/%[2]s && rmdir ports/%[1]d subsystems/%[2]s/namespaces/1 subsystems/%[2]s", port, nqn))
}

// load is one job of fio.
type load struct {
	mode, size string
	ios, depth int
}

// fio runs loads one after the other.
func (h traffic) fio(device string, loads ...load) {
	command := "fio --filename=" + device + " --direct=1 --ioengine=libaio --group_reporting --buffer_pattern=0x6b --randseed=1 --size=32M"
	for i, l := range loads {
		command += fmt.Sprintf(" --name=load%d --stonewall --rw=%s --bs=%s --number_ios=%d --iodepth=%d", i, l.mode, l.size, l.ios, l.depth)
	}
	h.Sh(h.client, command)
}

// verbs runs operations that the other traffic lacks: atomics, datagrams, unreliable connections, immediate data.
func (h traffic) verbs() {
	for _, test := range []string{
		"ib_write_bw -s 65536 -n 30", "ib_send_bw -s 16384 -n 50", "ib_atomic_bw -n 100", "ib_send_bw -c UD -s 1024 -n 100",
		"ib_write_bw -c UC -s 16384 -n 20",
	} {
		command := "timeout 60 " + test + " -F -d rxe0 -x 1"
		server := h.Spawn(h.server, command+" >/run/perftest.log 2>&1")
		h.Eventually(20*time.Second, test+" listens", func() bool {
			_, err := h.Try(h.server, "ss -ltn | grep -q :18515")
			return err == nil
		})
		h.Sh(h.client, command+" "+h.server.Addr())
		if err := server.Wait(h.T.Context()); err != nil {
			h.T.Errorf("%s: %v\n%s", test, err, h.Sh(h.server, "cat /run/perftest.log"))
		}
	}
	rstream := h.Spawn(h.server, "timeout 60 rstream -b "+h.server.Addr()+" -S 4096 -C 20 >/run/rstream.log 2>&1") // RDMA WRITE with immediate
	h.Eventually(20*time.Second, "rstream listens", func() bool {
		_, err := h.Try(h.server, "rdma resource show cm_id | grep -q 'LISTEN.*rstream'")
		return err == nil
	})
	h.Sh(h.client, "timeout 60 rstream -s "+h.server.Addr()+" -S 4096 -C 20")
	if err := rstream.Wait(h.T.Context()); err != nil {
		h.T.Errorf("rstream: %v\n%s", err, h.Sh(h.server, "cat /run/rstream.log"))
	}
}
