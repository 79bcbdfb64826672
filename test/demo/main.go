// SPDX-License-Identifier: Apache-2.0

// Demo shows krping's main use with two virtual machines: it attaches a volume of one as a block device of the
// other, writes to it, and verifies the data on both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		fmt.Println("\nFAIL")
		os.Exit(1)
	}
}
