// SPDX-License-Identifier: Apache-2.0

// Krpingctl commands the rdma_krping module and shows what it does.
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
	err := run(ctx, os.Args[1:], os.Stdout)
	report(err)
	os.Exit(exitCode(err))
}
