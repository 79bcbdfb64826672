// SPDX-License-Identifier: Apache-2.0

//go:build !man

// Krping-bridge is the user-space target of krping's block devices: it receives the commands of
// a /dev/krpingN over RDMA, checks and executes them, and answers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"krping/bridge/journal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		severity := ""
		if journal.Is(os.Stderr) {
			severity = "<3>" // an error
		}
		fmt.Fprintf(os.Stderr, "%skrping-bridge: %v\n", severity, err)
		os.Exit(1)
	}
}
