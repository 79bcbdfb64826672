// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Jobs take their places, the longest first, and none is left alone at the end.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(3)
		p.out = io.Discard
		var taken, most atomic.Int32
		var began []string
		work := func(name string, places int, minutes time.Duration, err error) job {
			return job{name: name, places: places, expect: minutes * time.Minute, run: func(context.Context, io.Writer) error {
				p.mu.Lock()
				began = append(began, name)
				p.mu.Unlock()
				most.Store(max(most.Load(), taken.Add(int32(places))))
				time.Sleep(minutes * time.Minute)
				taken.Add(int32(-places))
				return err
			}}
		}
		start := time.Now()
		p.run(t.Context(), []job{
			work("short", 1, 1, nil), work("long", 1, 5, nil), work("two", 2, 3, nil), work("middle", 1, 2, errors.New("failed")),
		}, nil)
		if took := time.Since(start); took != 5*time.Minute {
			t.Errorf("took %v, want 5m", took)
		}
		slices.Sort(began[:2]) // they begin together
		if want := []string{"long", "two", "middle", "short"}; !slices.Equal(began[:2], want[:2]) || len(began) != 4 {
			t.Errorf("began in the order %q, want %q", began, want)
		}
		if most.Load() != 3 || !slices.Equal(p.failed, []string{"middle"}) {
			t.Errorf("%d places taken at a time, want 3; failed: %q", most.Load(), p.failed)
		}
	})
}

// A job of more places than there are runs alone; checks run beside, one after the other.
func TestPoolWithChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1)
		p.out = io.Discard
		work := func(places int) job {
			return job{places: places, run: func(context.Context, io.Writer) error { time.Sleep(time.Minute); return nil }}
		}
		start := time.Now()
		p.run(t.Context(), []job{work(1), work(2)}, []job{work(1), work(1), work(1)})
		if took := time.Since(start); took != 3*time.Minute {
			t.Errorf("took %v, want 3m", took)
		}
	})
}
