// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"sync"
	"time"
)

// rdtsc reads the time stamp counter of this host, which is also that of an emulated CPU.
func rdtsc() uint64

// tscKHz measures the counter's frequency.
//
// A guest would measure it at boot, against an emulated timer and for a few milliseconds. If the host does
// not run its CPU meanwhile, the guest's clock runs fast from then on, several times as fast on a busy host:
// every time-out is too short.
var tscKHz = sync.OnceValue(func() uint64 {
	now := func() (ticks uint64, at time.Time) { // both at the same time: if they took long, again
		for {
			before := time.Now()
			ticks, at = rdtsc(), time.Now()
			if at.Sub(before) < 10*time.Microsecond {
				return ticks, at
			}
		}
	}
	ticks, began := now()
	time.Sleep(100 * time.Millisecond)
	later, ended := now()
	return (later - ticks) * uint64(time.Millisecond) / uint64(ended.Sub(began))
})
