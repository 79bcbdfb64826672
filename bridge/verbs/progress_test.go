// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"testing"
	"time"
)

func TestIsStuck(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	var p progress
	want := func(d time.Duration, stuck bool) {
		t.Helper()
		if p.isStuck(at(d)) != stuck {
			t.Errorf("after %v: stuck is %v, want %v", d, !stuck, stuck)
		}
	}
	want(time.Hour, false) // idle
	p.posted(1, at(time.Hour))
	p.posted(1, at(time.Hour+3*time.Second)) // a later post is no progress
	want(time.Hour+stuckTime-1, false)
	want(time.Hour+stuckTime, true)
	p.completed(at(time.Hour + stuckTime))
	want(time.Hour+2*stuckTime-1, false)
	want(time.Hour+2*stuckTime, true)
	p.completed(at(time.Hour + 2*stuckTime))
	want(2*time.Hour, false)
}
