// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"krping/test/lab"
)

// shellCommand opens a shell in each VM, on a virtio console to which `lab attach` connects a terminal.
func shellCommand(o *bootOptions) *cobra.Command {
	var vms int
	cmd := &cobra.Command{
		Use:   "shell",
		Short: "Boot two VMs with the module loaded and open a shell in each (in tmux, if it is installed)",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return shell(cmd.Context(), o, vms) },
	}
	cmd.Flags().IntVar(&vms, "vms", 2, "number of VMs, 1 or 2")
	return cmd
}

func shell(ctx context.Context, o *bootOptions, vms int) error {
	config := o.config(vms)
	config.Shells = true
	l, err := lab.Start(ctx, config)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	fmt.Printf("kernel %s; the repository is at %s in each VM, with build/krpingctl and build/krping-bridge\n", l.Kernel.Release, lab.Repo())
	if tmux, err := exec.LookPath("tmux"); err == nil && isTerminal(os.Stdin) {
		return inTmux(ctx, tmux, l, vms)
	}
	for i := range vms {
		fmt.Printf("VM %d (%s): %s\n", i+1, l.VM(i).Addr(), attachCommand(l.VM(i)))
	}
	fmt.Println("press Ctrl-C to end the VMs")
	<-ctx.Done()
	return nil
}

func attachCommand(vm *lab.VM) string {
	return fmt.Sprintf("%s attach %s", self(), vm.ShellSocket())
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		return filepath.Join(lab.Build(), "lab")
	}
	return path
}

func inTmux(ctx context.Context, tmux string, l *lab.Lab, vms int) error {
	const name = "krping-lab"
	args := []string{"-L", name, "new-session", "-s", name, "-n", "vm1", attachCommand(l.VM(0))}
	if vms > 1 {
		args = append(args, ";", "split-window", "-h", attachCommand(l.VM(1)))
	}
	cmd := exec.CommandContext(ctx, tmux, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
