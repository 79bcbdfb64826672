// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// attachCmd connects this terminal to a guest's shell; shell starts it.
func attachCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "attach SOCKET",
		Short:  "Connect this terminal to a VM's shell",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			conn, err := net.Dial("unix", args[0])
			if err != nil {
				return fmt.Errorf("attach: is the lab still running?: %w", err)
			}
			defer conn.Close()
			restore, err := rawMode()
			if err != nil {
				return err
			}
			defer restore()
			go func() { _, _ = io.Copy(conn, os.Stdin) }()
			_, err = io.Copy(os.Stdout, conn)
			return err
		},
	}
}

// rawMode passes every key to the guest.
func rawMode() (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("attach needs a terminal: %w", err)
	}
	raw := *old
	raw.Iflag &^= unix.IXON | unix.ICRNL | unix.BRKINT | unix.INPCK | unix.ISTRIP
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG | unix.IEXTEN
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}
