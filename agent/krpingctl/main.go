// SPDX-License-Identifier: Apache-2.0

//go:build !man

// Krpingctl controls the rdma_krping module and measures, traces and verifies its I/O. This package
// is the command line only; each command's work is done in a package of agent/ or in proc.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the first signal ends the command in good order, a second one at once
	err := run(ctx, os.Args[1:], os.Stdout)
	report(err)
	os.Exit(exitCode(err))
}
