// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"krping/test/lab"
	"krping/test/output"
)

// krpingTarget is krping with the target in the kernel.
type krpingTarget struct {
	port   int
	number string // of several volumes
}

func (k *krpingTarget) volume() string { return "bench-kernel" + k.number }

func (k *krpingTarget) name() string { return kernelTarget }

func (k *krpingTarget) about() string {
	return "/dev/krpingN and the target in the kernel, write-through, CRC32C of all data, a poll queue for polled jobs"
}

func (k *krpingTarget) attach(ctx context.Context, s *site, disk string) (string, error) {
	serve := fmt.Sprintf("krpingctl server --addr %s --port %d --block %s --backing %s", s.server.Addr(), k.port, k.volume(), disk)
	if _, err := s.run(ctx, s.server, serve); err != nil {
		return "", err
	}
	return attachVolume(ctx, s, k.port, k.volume())
}

func (k *krpingTarget) detach(ctx context.Context, s *site) error {
	err := detachVolume(ctx, s, k.volume())
	_, stopped := s.run(ctx, s.server, ifHeld(k.volume())+"krpingctl stop --target "+k.volume())
	return errors.Join(err, stopped)
}

// krpingBridge is krping with the target in user space.
type krpingBridge struct {
	port    int
	process *lab.Process
	out     *output.Buffer
}

const bridgeVolume = "bench-bridge"

func (k *krpingBridge) name() string { return bridgeTarget }

func (k *krpingBridge) about() string {
	return "/dev/krpingN and krping-bridge, write-through, CRC32C of all data, a poll queue for polled jobs"
}

func (k *krpingBridge) attach(ctx context.Context, s *site, disk string) (string, error) {
	serve := fmt.Sprintf("krping-bridge --listen %s:%d --volume %s=file:%s", s.server.Addr(), k.port, bridgeVolume, disk)
	var err error
	if k.process, k.out, err = s.spawn(ctx, s.server, serve, "listening on"); err != nil {
		return "", err
	}
	device, err := attachVolume(ctx, s, k.port, bridgeVolume)
	if err != nil {
		return "", fmt.Errorf("%w\nkrping-bridge: %s", err, k.out.String())
	}
	return device, nil
}

func (k *krpingBridge) detach(ctx context.Context, s *site) error {
	err := detachVolume(ctx, s, bridgeVolume)
	if k.process == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	stopped := k.process.Signal(unix.SIGTERM)
	if stopped == nil {
		stopped = k.process.Wait(ctx)
	}
	if stopped != nil {
		stopped = failure(s.server, "krping-bridge", k.out.String(), stopped)
	}
	return errors.Join(err, stopped)
}

func attachVolume(ctx context.Context, s *site, port int, volume string) (string, error) {
	attach := fmt.Sprintf("krpingctl client --addr %s --port %d --block %s", s.server.Addr(), port, volume)
	if s.polls {
		attach += " --poll-queues 1"
	}
	if s.queues > 0 {
		attach += fmt.Sprintf(" --queues %d", s.queues)
	}
	out, err := s.run(ctx, s.client, attach)
	return strings.TrimSpace(out), err
}

func detachVolume(ctx context.Context, s *site, volume string) error {
	_, err := s.run(ctx, s.client, ifHeld(volume)+"krpingctl stop "+volume)
	return err
}

// ifHeld is a line that ends a clean-up script if the volume has no session.
func ifHeld(volume string) string {
	return "grep -q ' name=" + volume + " ' /proc/krping_sessions || exit 0\n"
}
