// SPDX-License-Identifier: Apache-2.0

// Guest is process 1 of a lab VM: it finishes the set-up that the initramfs started, and runs the
// commands that the host sends.
package main

import (
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		fmt.Fprintln(os.Stderr, "lab: serve:", serve())
		os.Exit(1)
	}
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "lab: set-up failed:", err)
	} else if err := startServer(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	} else {
		reap()
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// startServer starts the server as a child, since process 1 reaps all children, and a shell if the kernel's
// command line asks for one.
func startServer() error {
	if parameter("lab.shell") != "" {
		shell := exec.Command("sh", "-c", "while :; do setsid -c bash -l </dev/hvc0 >/dev/hvc0 2>&1; done")
		shell.Dir = "/root"
		shell.Env = append(os.Environ(), "TERM=xterm-256color")
		if err := shell.Start(); err != nil {
			return fmt.Errorf("start the shell: %w", err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "serve")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Start()
}

// reap waits for all child processes, including orphans, and returns when none is left.
func reap() {
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}
