// SPDX-License-Identifier: Apache-2.0

// Demo shows krping's main job between two virtual machines: a volume of one becomes a
// block device of the other, and what was written is proven to be there.
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
