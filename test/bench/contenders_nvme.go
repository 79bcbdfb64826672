// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// nvme is NVMe over fabrics with the kernel's target, set up through configfs and
// /dev/nvme-fabrics.
type nvme struct {
	transport string // rdma or tcp
	port      int
}

func (n *nvme) name() string { return "nvme-" + n.transport }

func (n *nvme) about() string {
	text := "nvmet's block backend, an I/O queue of 128 a CPU, no native multipath, no digest"
	if n.transport == "rdma" {
		text += fmt.Sprintf(", param_inline_data_size=%d", inlineData)
	}
	return text
}

// Largest that nvmet takes: 4 pages.
const inlineData = 16384

func (n *nvme) subsystem() string { return "bench-" + n.transport }

const mountConfigfs = "mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config\n"

func (n *nvme) attach(ctx context.Context, s *site, disk string) (string, error) {
	serve := fmt.Sprintf(`modprobe -a nvmet nvmet-%[1]s
%[2]scd /sys/kernel/config/nvmet
mkdir subsystems/%[3]s
echo 1 > subsystems/%[3]s/attr_allow_any_host
mkdir subsystems/%[3]s/namespaces/1
echo %[4]s > subsystems/%[3]s/namespaces/1/device_path
echo 1 > subsystems/%[3]s/namespaces/1/enable
mkdir ports/%[5]d
echo %[1]s > ports/%[5]d/addr_trtype
echo ipv4 > ports/%[5]d/addr_adrfam
echo %[6]s > ports/%[5]d/addr_traddr
echo %[5]d > ports/%[5]d/addr_trsvcid
echo %[7]d > ports/%[5]d/param_inline_data_size
ln -s /sys/kernel/config/nvmet/subsystems/%[3]s ports/%[5]d/subsystems/%[3]s`,
		n.transport, mountConfigfs, n.subsystem(), disk, n.port, s.server.Addr(), inlineData)
	if _, err := s.run(ctx, s.server, serve); err != nil {
		return "", n.withLog(ctx, s, err)
	}
	// The device's own statistics count, and requests are merged as krping's are: no multipath. The
	// default keep-alive of 5 s is for hosts that are not emulated.
	connect := fmt.Sprintf(`modprobe nvme_core multipath=N
modprobe nvme-%[1]s
echo transport=%[1]s,traddr=%[2]s,trsvcid=%[3]d,nqn=%[4]s,nr_io_queues=$(nproc),queue_size=128,keep_alive_tmo=120 > /dev/nvme-fabrics
controller=$(grep -lx %[4]s /sys/class/nvme/*/subsysnqn)
controller=$(basename ${controller%%/subsysnqn})
for i in $(seq 100); do
	test -b /dev/${controller}n1 && break
	sleep 0.1
done
test -b /dev/${controller}n1
echo /dev/${controller}n1`, n.transport, s.server.Addr(), n.port, n.subsystem())
	out, err := s.run(ctx, s.client, connect)
	if err != nil {
		return "", n.withLog(ctx, s, err)
	}
	return strings.TrimSpace(out), nil
}

// withLog adds the kernels' reasons to an error: configfs and /dev/nvme-fabrics give none.
func (n *nvme) withLog(ctx context.Context, s *site, err error) error {
	server, _ := s.run(ctx, s.server, "dmesg | grep -i nvme | tail -n 5")
	client, _ := s.run(ctx, s.client, "dmesg | grep -i nvme | tail -n 5")
	return fmt.Errorf("%w\n%s%s", err, server, client)
}

func (n *nvme) detach(ctx context.Context, s *site) error {
	_, client := s.run(ctx, s.client, fmt.Sprintf(`for nqn in $(grep -lsx %s /sys/class/nvme/*/subsysnqn); do
	echo 1 > ${nqn%%/subsysnqn}/delete_controller
done`, n.subsystem()))
	_, server := s.run(ctx, s.server, fmt.Sprintf(`cd /sys/kernel/config/nvmet 2>/dev/null || exit 0
[ ! -e ports/%[2]d/subsystems/%[1]s ] || rm ports/%[2]d/subsystems/%[1]s
for dir in ports/%[2]d subsystems/%[1]s/namespaces/1 subsystems/%[1]s; do
	[ ! -d $dir ] || rmdir $dir
done`, n.subsystem(), n.port))
	return errors.Join(client, server)
}
