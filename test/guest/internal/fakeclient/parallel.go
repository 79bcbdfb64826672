// SPDX-License-Identifier: Apache-2.0

//go:build lab

package fakeclient

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// Many returns a number of clients that is more than any server accepts. With -short it is smaller.
func Many() int {
	if testing.Short() {
		return 300
	}
	return 1000
}

// DialMany connects n clients and returns those that were accepted. The server must reject all
// others, each as checkReject wants it.
func DialMany[C any](t testing.TB, n int, dial func(i int) (C, error), checkReject func(r *verbs.RejectedError) error) []C {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var accepted []C
	var dials errgroup.Group
	dials.SetLimit(max(1, 8/int(guest.Slow(1)))) // the listeners' backlogs are short, and siw gives up after 10 s
	for i := range n {
		dials.Go(func() error {
			c, err := dial(i)
			var rejected *verbs.RejectedError
			switch {
			case errors.As(err, &rejected):
				err = checkReject(rejected)
			case err == nil:
				mu.Lock()
				accepted = append(accepted, c)
				mu.Unlock()
			}
			if err != nil {
				return fmt.Errorf("client %d of %d: %w", i, n, err)
			}
			return nil
		})
	}
	if err := dials.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d clients were accepted, in %v", len(accepted), n, time.Since(start).Round(10*time.Millisecond))
	return accepted
}

// Busy returns a check for the reject of a server that has as many clients as it accepts.
func Busy(limit uint32) func(r *verbs.RejectedError) error {
	return func(r *verbs.RejectedError) error {
		reject, err := wire.DecodeReject(r.Private)
		if err == nil && (reject.Reason != wire.RejectBusy || reject.Value != limit) {
			err = fmt.Errorf("rejected with reason %d, value %d, want reason %d, value %d", reject.Reason, reject.Value, wire.RejectBusy, limit)
		}
		return err
	}
}

// WantAccepted checks that a server has accepted as many clients as its limit allows. On a slow kernel
// some connections time out, and later clients take their places.
func WantAccepted(t testing.TB, accepted, limit int) {
	t.Helper()
	if accepted < limit || accepted > limit && guest.Slow(1) == 1 {
		t.Errorf("%d clients were accepted, want %d", accepted, limit)
	}
}
