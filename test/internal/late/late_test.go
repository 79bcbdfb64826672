// SPDX-License-Identifier: Apache-2.0

package late

import (
	"testing"
	"time"
)

// A wait is longer than the limit, but what was late still differs from a hang.
func TestLimit(t *testing.T) {
	for limit, want := range map[time.Duration]time.Duration{
		time.Second: 2 * time.Second, 40 * time.Second: 59 * time.Second, time.Minute: time.Minute, 3 * time.Minute: 3 * time.Minute,
	} {
		if got := Limit(limit); got != want {
			t.Errorf("Limit(%v) = %v, want %v", limit, got, want)
		}
	}
}
