// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"krping/test/lab"
)

// bootOptions are the options of all subcommands.
type bootOptions struct {
	kernel  string
	out     string
	console bool
	noRXE   bool
	iwarp   bool
}

func (o *bootOptions) config(vms int) lab.Config {
	c := lab.Config{Kernel: o.kernel, VMs: vms, Out: o.out, NoRXE: o.noRXE, IWARP: o.iwarp}
	if o.console {
		c.Console = os.Stderr
	}
	return c
}

func run(ctx context.Context, args []string) error {
	var o bootOptions
	root := &cobra.Command{Use: "lab", Short: "Boot virtual machines with Soft-RoCE from this host's files and run tests in them", SilenceErrors: true, SilenceUsage: true}
	f := root.PersistentFlags()
	f.StringVar(&o.kernel, "kernel", "6.1", "`kernel`: 6.1, 6.12 or newest; debug or kcsan if built")
	f.StringVar(&o.out, "out", "", "`directory` for consoles and the guests' /lab/out (default: a temporary one)")
	f.BoolVar(&o.console, "console", false, "show the consoles on stderr")
	f.BoolVar(&o.noRXE, "no-rxe", false, "do not add rxe0")
	f.BoolVar(&o.iwarp, "iwarp", false, "add siw0 (iWARP) instead of rxe0; needs the debug kernel")
	root.AddCommand(runCommand(&o), shellCommand(&o), attachCmd(), suitesCommand(&o), summaryCommand())
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func runCommand(o *bootOptions) *cobra.Command {
	var (
		vms, on int
		timeout time.Duration
		module  bool
		expect  []string
	)
	cmd := &cobra.Command{
		Use:     "run [flags] -- COMMAND [ARG...]",
		Short:   "Run a command in a VM and exit with its status",
		Example: "  lab run --vms 2 --on 2 -- ping -c 1 192.168.77.1",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if on < 1 || on > vms {
				return fmt.Errorf("--on %d: must be 1 to %d", on, vms)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			l, err := lab.Start(ctx, o.config(vms))
			if err != nil {
				return err
			}
			defer l.Close()
			if module {
				if err := l.LoadModule(ctx); err != nil {
					return err
				}
			}
			err = l.VM(on-1).Run(ctx, lab.Cmd{Argv: args, Stdout: os.Stdout, Stderr: os.Stderr})
			if report := l.Complaints(expect...); report != "" {
				err = errors.Join(err, errors.New(report))
			}
			return err
		},
	}
	cmd.Flags().IntVar(&vms, "vms", 1, "number of VMs, 1 or 2")
	cmd.Flags().IntVar(&on, "on", 1, "`number` of the VM that runs the command")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "kill the VMs after this time")
	cmd.Flags().BoolVar(&module, "module", false, "load rdma_krping in every VM first")
	cmd.Flags().StringArrayVar(&expect, "expect", nil, "do not fail for console lines that contain this `text`")
	return cmd
}
