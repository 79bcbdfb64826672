// SPDX-License-Identifier: Apache-2.0

//go:build !man

// Krpingctl controls the rdma_krping module and measures, traces and verifies its I/O. This package
// is the command line only; each command's work is done in a package of agent/ or in proc.
package main

import (
	"os"

	"krping/bridge/interrupt"
)

func main() {
	ctx, stop := interrupt.Context()
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	report(err)
	os.Exit(exitCode(err))
}
