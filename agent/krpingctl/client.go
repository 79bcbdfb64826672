// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/proc"
)

// connectFlags are the module's options as flags.
type connectFlags struct {
	addr    string
	count   uint32
	timeout time.Duration
	dryRun  bool
	command proc.Command
}

func (f *connectFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.addr, "addr", "", "IPv4 or IPv6 `address` of the server on an RDMA device (fe80::1%eth0 if it is link-local)")
	flags.StringVar(&f.addr, "addr6", "", "the same, as the module spells it for IPv6")
	flags.Uint16Var(&f.command.Port, "port", 9999, "port")
	flags.Uint32Var(&f.command.Size, "size", 0, "bytes of a ping; of a server: the most that it takes (default 64, server 65536)")
	flags.DurationVar(&f.timeout, "timeout", 0, "of set-up and of each step; with --block, how long I/O waits for the target (default 10s, 10m)")
	flags.BoolVar(&f.command.Verbose, "verbose", false, "log the first bytes of pings in the kernel log")
	flags.BoolVar(&f.command.Validate, "validate", false, "compare the data")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print what would be written to /proc/krping, and do nothing")
}

func clientCommand(p *program) *cobra.Command {
	var f connectFlags
	cmd := &cobra.Command{
		Use:   "client --addr ADDR [--block NAME]",
		Short: "Ping a server, or make a block device of a target's volume",
		Long: `Ping a server (krping, rping or another host's krpingctl server), or with --block
connect to a volume of krping-bridge and print the path of its device.`,
		Example: `  krpingctl client --addr 192.168.77.1 --count 100 --validate
  krpingctl client --addr 192.168.77.1 --block vol0`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("count") {
				f.command.Count = &f.count
			}
			return p.connect(cmd.Context(), proc.Client, &f)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.Uint32Var(&f.count, "count", 0, "pings; 0: until interrupted")
	flags.StringVar(&f.command.Block, "block", "", "`name` of a volume: make a block device of it")
	flags.Uint32Var(&f.command.Queues, "queues", 0, "queue pairs of the block device (default 1)")
	flags.Uint32Var(&f.command.Depth, "depth", 0, "requests in flight on each (default 128)")
	return cmd
}

func serverCommand(p *program) *cobra.Command {
	var f connectFlags
	cmd := &cobra.Command{
		Use:     "server --addr ADDR",
		Short:   "Answer the pings of one client",
		Example: "  krpingctl server --addr 192.168.77.1 --validate",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.connect(cmd.Context(), proc.Server, &f)
		},
	}
	f.register(cmd)
	return cmd
}

func (p *program) connect(ctx context.Context, role proc.Role, f *connectFlags) error {
	c := f.command
	c.Role, c.Timeout = role, f.timeout
	if f.addr == "" {
		return usagef("--addr is needed: the address of the server's RDMA device")
	}
	addr, err := netip.ParseAddr(f.addr)
	if err != nil {
		return usagef("--addr %s: not an IP address", f.addr)
	}
	c.Addr = addr
	if err := c.Check(); err != nil {
		return usageError{err}
	}
	if f.dryRun {
		_, err := fmt.Fprintln(p.out, c)
		return err
	}
	log.Debug().Stringer("command", c).Msg("writing to /proc/krping")
	messages, err := p.proc.Run(ctx, c)
	if err != nil {
		return err
	}
	if c.Block != "" {
		s, err := p.proc.Session(c.Block)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.out, s.Device())
		return err
	}
	if len(messages) > 0 { // the last one sums up
		_, err = fmt.Fprintln(p.out, messages[len(messages)-1].Text)
	}
	return err
}

func stopCommand(p *program) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "stop NAME",
		Short:   "Remove the device of a volume and close its connections",
		Example: "  krpingctl stop vol0",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := proc.Command{Role: proc.Stop, Block: args[0], Force: force}
			if err := c.Check(); err != nil {
				return usageError{err}
			}
			_, err := p.proc.Run(cmd.Context(), c)
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even if the device is in use: its I/O fails")
	return cmd
}
