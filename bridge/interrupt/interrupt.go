// SPDX-License-Identifier: Apache-2.0

// Package interrupt lets the user end a program: in good order, and if that takes too long, at once.
package interrupt

import (
	"context"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Context returns a context that ends with the first SIGINT or SIGTERM. A second one ends the process.
// The caller calls stop when it no longer needs the context.
func Context() (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
