// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/doctor"
	"krping/agent/host/rdmalink"
	"krping/agent/host/softroce"
	"krping/agent/service"
	"krping/bridge/sysfs"
	"krping/bridge/systemd"
	"krping/proc"
)

func linkKeepCommand(p *program) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "keep NETDEV", Short: "Keep a Soft-RoCE device on a network device",
		Long: `Keep a Soft-RoCE device on a network device until the command is interrupted, and delete it then.

The device is made as soon as the network device is there, and again when one of them was removed. It
is made anew when it makes no connections any more: its GSI queue pair stays in the error state if a
packet could not be sent, as after a pulled cable. On Linux before 6.4 this is noticed only where the
module rdma_ucm or rdma_krping is loaded. What uses the device reconnects then.

krping-rxe@NETDEV.service runs this command.`,
		Example: "  krpingctl link keep eth0",
		Args:    arguments("NETDEV"),
		RunE: func(cmd *cobra.Command, args []string) error {
			netdev := args[0]
			if name == "" {
				name = "rxe_" + netdev
			}
			log := service.NewLogger(os.Stderr)
			ready := systemd.Ready + "\n"
			state := func(text string) {
				systemd.Notify(log, ready+"STATUS="+text)
				ready = ""
			}
			k := softroce.Keeper{Netdev: netdev, Name: name, Host: softRoCEHost{p.proc}, Log: log, State: state}
			return k.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` of the RDMA device, if it has to be made (default rxe_NETDEV)")
	return cmd
}

// softRoCEHost is this host.
type softRoCEHost struct{ proc proc.FS }

func (softRoCEHost) Netdev(name string) (softroce.Netdev, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return softroce.Netdev{}, nil
	}
	if err != nil {
		return softroce.Netdev{}, fmt.Errorf("network device %s: %w", name, err)
	}
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	changes, _ := strconv.ParseUint(sysfs.Text("/sys/class/net", name, "carrier_changes"), 10, 64) // 0 if it has just gone
	return softroce.Netdev{Exists: true, Up: link.Attrs().RawFlags&up == up, Changes: changes}, nil
}

func (softRoCEHost) Device(netdev string) (string, error) { return rdmalink.SoftRoCE(netdev) }

func (h softRoCEHost) Dead(ctx context.Context, device string, try bool) (string, error) {
	return doctor.Dead(ctx, h.proc, device, try)
}

func (softRoCEHost) Add(ctx context.Context, device, netdev string) error {
	return rdmalink.Add(ctx, device, rdmalink.RXE, netdev)
}

func (softRoCEHost) Del(device string) error { return rdmalink.Del(device) }
