// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// nvme is NVMe over fabrics with the kernel's target and host, set up by krpingctl nvme.
type nvme struct {
	transport string // rdma or tcp
	port      int
	number    string // of several subsystems
}

func (n *nvme) name() string { return "nvme-" + n.transport }

func (n *nvme) about() string {
	text := "nvmet's block backend, one I/O queue of 128 per CPU, no native multipath, no digest"
	if n.transport == "rdma" {
		text += fmt.Sprintf(", param_inline_data_size=%d, a poll queue for polled jobs", inlineData)
	}
	return text
}

// inlineData is the largest size that nvmet takes: 4 pages.
const inlineData = 16384

func (n *nvme) subsystem() string { return "bench-" + n.transport + n.number }

func (n *nvme) attach(ctx context.Context, s *site, disk string) (string, error) {
	serve := fmt.Sprintf("krpingctl nvme target add --nqn %s --device %s --transport %s --addr %s --port %d --inline-size %d",
		n.subsystem(), disk, n.transport, s.server.Addr(), n.port, inlineData)
	if _, err := s.run(ctx, s.server, serve); err != nil {
		return "", err
	}
	// Without multipath the device's own statistics count, and requests are merged as krping's are. The
	// default keep-alive of 5 s is too short for emulated hosts.
	connect := fmt.Sprintf("modprobe nvme_core multipath=N\n"+
		"krpingctl nvme connect --nqn %s --transport %s --traddr %s --trsvcid %d --queue-size 128 --keep-alive-tmo 120",
		n.subsystem(), n.transport, s.server.Addr(), n.port)
	if n.transport == "rdma" && s.polls {
		connect += " --nr-poll-queues 1"
	}
	if s.queues > 0 {
		connect += fmt.Sprintf(" --nr-io-queues %d", s.queues)
	}
	out, err := s.run(ctx, s.client, connect)
	return strings.TrimSpace(out), err
}

func (n *nvme) detach(ctx context.Context, s *site) error {
	_, client := s.run(ctx, s.client, fmt.Sprintf("krpingctl nvme list | grep -qw %[1]s || exit 0\nkrpingctl nvme disconnect --nqn %[1]s", n.subsystem()))
	_, server := s.run(ctx, s.server, fmt.Sprintf("krpingctl nvme target list | grep -qw %[1]s || exit 0\nkrpingctl nvme target remove %[1]s", n.subsystem()))
	return errors.Join(client, server)
}
