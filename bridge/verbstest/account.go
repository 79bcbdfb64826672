// SPDX-License-Identifier: Apache-2.0

package verbstest

// window is how many of the latest numbers an account tells apart. An older one counts as repeated.
const window = 1024

// account keeps account of the numbers of the messages that a queue pair receives. It is the same as the
// module's (kmod/verbs/account.c).
type account struct {
	next      uint64 // one more than the highest number
	received  uint64 // different messages
	repeated  uint64
	reordered uint64 // arrived after a later one; also received

	seen [window / 64]uint64 // bit of number modulo window
}

// extend returns the number closest to the next one of which these are the lowest bits, a multiple of 8.
func (a *account) extend(low uint32, bits int) uint64 {
	shift := 32 - bits
	difference := int64(int32((low-uint32(a.next))<<shift) >> shift)
	if difference < 0 && a.next < uint64(-difference) {
		difference += 1 << bits
	}
	return a.next + uint64(difference)
}

// add counts a message.
func (a *account) add(n uint64) {
	switch {
	case n >= a.next:
		a.skip(n)
		a.next = n + 1
		a.received++
	case a.next-n > window || a.has(n):
		a.repeated++
		return
	default:
		a.received++
		a.reordered++
	}
	a.seen[n%window/64] |= 1 << (n % 64)
}

// skip takes the numbers below n as not seen, as far as they were not.
func (a *account) skip(n uint64) {
	if n <= a.next {
		return
	}
	if n-a.next >= window {
		a.seen = [window / 64]uint64{}
	}
	for i := a.next; i < n && n-a.next < window; i++ {
		a.seen[i%window/64] &^= 1 << (i % 64)
	}
	a.next = n
}

// lacks reports whether message n has not arrived that is before others, but could still count.
func (a *account) lacks(n uint64) bool { return n < a.next && a.next-n <= window && !a.has(n) }

func (a *account) has(n uint64) bool { return a.seen[n%window/64]&(1<<(n%64)) != 0 }
