// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"math/rand/v2"
	"testing"
)

func TestAccount(t *testing.T) {
	for name, tc := range map[string]struct {
		numbers                             []uint64
		next, received, repeated, reordered uint64
	}{
		"in order":                 {[]uint64{0, 1, 2, 3}, 4, 4, 0, 0},
		"one lost":                 {[]uint64{0, 1, 3}, 4, 3, 0, 0},
		"first lost":               {[]uint64{2}, 3, 1, 0, 0},
		"two exchanged":            {[]uint64{0, 2, 1, 3}, 4, 4, 0, 1},
		"repeated at once":         {[]uint64{0, 0, 1}, 2, 2, 1, 0},
		"repeated later":           {[]uint64{0, 1, 2, 0, 3}, 4, 4, 1, 0},
		"late, and repeated":       {[]uint64{0, 2, 1, 1}, 3, 3, 1, 1},
		"far ahead, then behind":   {[]uint64{0, 5000, 4999, 1}, 5001, 3, 1, 1},
		"a window ahead":           {[]uint64{0, window, 1, 0}, window + 1, 3, 1, 1},
		"repeated within a window": {[]uint64{0, 1, window, 1}, window + 1, 3, 1, 0},
	} {
		var a account
		for _, n := range tc.numbers {
			a.add(n)
		}
		if a.next != tc.next || a.received != tc.received || a.repeated != tc.repeated || a.reordered != tc.reordered {
			t.Errorf("%s: next %d, received %d, repeated %d, reordered %d; want %+v", name, a.next, a.received, a.repeated, a.reordered, tc)
		}
	}
}

// Against a set of all numbers, with loss, repetition and disorder within the window.
func TestAccountAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a account
	seen := map[uint64]bool{}
	var received, repeated, reordered, highest uint64
	for i := range uint64(200000) {
		n := i + uint64(r.IntN(8))*uint64(r.IntN(40))
		if n < highest && highest-n > window-1 {
			continue
		}
		switch {
		case seen[n]:
			repeated++
		case n < highest:
			reordered++
			received++
		default:
			received++
		}
		seen[n] = true
		highest = max(highest, n)
		a.add(n)
		if a.received != received || a.repeated != repeated || a.reordered != reordered || a.next != highest+1 {
			t.Fatalf("after %d: %d %d %d, want %d %d %d", n, a.received, a.repeated, a.reordered, received, repeated, reordered)
		}
	}
	if repeated == 0 || reordered == 0 || received == 200000 {
		t.Errorf("%d received, %d repeated, %d reordered: want some of each", received, repeated, reordered)
	}
}

func TestExtend(t *testing.T) {
	for _, tc := range []struct {
		next uint64
		low  uint32
		bits int
		want uint64
	}{
		{0, 0, 32, 0}, {5, 7, 32, 7}, {5, 3, 32, 3}, {0, 0xffffffff, 32, 0xffffffff},
		{1 << 32, 0xffffffff, 32, 1<<32 - 1}, {1<<32 - 1, 0, 32, 1 << 32}, {1<<40 + 5, 4, 32, 1<<40 + 4},
		{255, 0, 8, 256}, {256, 255, 8, 255}, {300, 44, 8, 300}, {300, 43, 8, 299}, {3, 0xff, 8, 0xff},
	} {
		a := account{next: tc.next}
		if got := a.extend(tc.low, tc.bits); got != tc.want {
			t.Errorf("%#x with %d bits after %d: %d, want %d", tc.low, tc.bits, tc.next, got, tc.want)
		}
	}
}
