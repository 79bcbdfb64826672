// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package crowd connects many clients to a server that takes a few of them.
package crowd

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

// Size is how many clients make a crowd; with -short they are fewer, but more than any server takes.
func Size() int {
	if testing.Short() {
		return 300
	}
	return 1000
}

// Dial connects n clients and returns those that were taken. The others have to be refused as the server
// refuses when it has as many as it takes. They all have to be refused or taken: none is forgotten.
func Dial[C any](t testing.TB, n int, dial func(i int) (C, error), refusal func(r *verbs.RejectedError) error) []C {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var taken []C
	var dials errgroup.Group
	dials.SetLimit(8) // the listeners' backlogs are short
	for i := range n {
		dials.Go(func() error {
			c, err := dial(i)
			var rejected *verbs.RejectedError
			switch {
			case errors.As(err, &rejected):
				err = refusal(rejected)
			case err == nil:
				mu.Lock()
				taken = append(taken, c)
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
	t.Logf("%d of %d clients were taken, in %v", len(taken), n, time.Since(start).Round(10*time.Millisecond))
	return taken
}

// Busy returns what checks the refusal of a server that takes so many.
func Busy(most uint32) func(r *verbs.RejectedError) error {
	return func(r *verbs.RejectedError) error {
		reject, err := wire.DecodeReject(r.Private)
		if err == nil && (reject.Reason != wire.RejectBusy || reject.Value != most) {
			err = fmt.Errorf("refused with reason %d, value %d, want reason %d, value %d", reject.Reason, reject.Value, wire.RejectBusy, most)
		}
		return err
	}
}

// Filled checks that as many clients were taken as there are places. On a slow kernel, whose devices do not get
// an answer in time among so many, some are lost meanwhile, and others take their places.
func Filled(t testing.TB, taken, places int) {
	t.Helper()
	if taken < places || taken > places && guest.Slow(1) == 1 {
		t.Errorf("%d clients were taken, want %d", taken, places)
	}
}
