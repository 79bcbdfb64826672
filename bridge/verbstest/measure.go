// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"math/bits"
	"time"
)

// peakInterval is how long the best interval is.
const peakInterval = 100 * time.Millisecond

// peak finds the interval with the most messages.
type peak struct {
	start, last time.Time
	done        uint64 // by last
	intervals   int
	best        float64 // messages a second
}

func (p *peak) begin(now time.Time) { p.start, p.last = now, now }

// add notes how many messages are done by now.
func (p *peak) add(now time.Time, done uint64) {
	if took := now.Sub(p.last); took >= peakInterval {
		p.best = max(p.best, float64(done-p.done)/took.Seconds())
		p.last, p.done = now, done
		p.intervals++
	}
}

// rate returns the most messages a second, 0 if there were fewer than two intervals.
func (p *peak) rate() float64 {
	if p.intervals < 2 {
		return 0
	}
	return p.best
}

// latencies is a histogram as the module's (kmod/INTERFACE.md section 1.1): buckets are 1 ns wide up to 127
// ns, above that each doubling has 64, and the last one is for 68 s and more.
type latencies struct {
	count    uint64
	sum      time.Duration
	min, max time.Duration
	buckets  [lastBucket + 1]uint64
}

const (
	subBits    = 6
	lastBucket = (36-subBits)<<subBits + 1<<subBits // 2^36 ns are 68 s
)

func bucketOf(ns uint64) int {
	if ns < 2<<subBits {
		return int(ns)
	}
	shift := bits.Len64(ns) - subBits - 1
	return min(shift<<subBits+int(ns>>shift), lastBucket)
}

// upper returns the most nanoseconds of a bucket.
func upper(bucket int) time.Duration {
	if bucket < 2<<subBits {
		return time.Duration(bucket)
	}
	shift := bucket>>subBits - 1
	return time.Duration((uint64(bucket&(1<<subBits-1)+1<<subBits)+1)<<shift - 1)
}

func (l *latencies) add(d time.Duration) {
	if l.count == 0 || d < l.min {
		l.min = d
	}
	l.max = max(l.max, d)
	l.count++
	l.sum += d
	l.buckets[bucketOf(uint64(d))]++
}

// quantile returns the upper end of the bucket of a quantile, at most the maximum.
func (l *latencies) quantile(q float64) time.Duration {
	want := uint64(q*float64(l.count)) + 1
	var n uint64
	for i, count := range l.buckets {
		if n += count; n >= want {
			return min(upper(i), l.max)
		}
	}
	return l.max
}
