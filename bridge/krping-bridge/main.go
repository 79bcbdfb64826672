// SPDX-License-Identifier: Apache-2.0

//go:build !man

// Krping-bridge is the user-space target of krping's block devices: it receives the commands of
// a /dev/krpingN over RDMA, checks and executes them, and answers.
package main

import (
	"errors"
	"fmt"
	"os"

	"krping/bridge/cli"
	"krping/bridge/interrupt"
	"krping/bridge/journal"
)

func main() {
	ctx, stop := interrupt.Context()
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		severity := ""
		if journal.Is(os.Stderr) {
			severity = "<3>" // an error
		}
		fmt.Fprintf(os.Stderr, "%skrping-bridge: %v\n", severity, err)
		if errors.As(err, new(cli.UsageError)) {
			os.Exit(cli.ExitUsage)
		}
		os.Exit(1)
	}
}
