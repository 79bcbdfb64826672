// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"cmp"
	"slices"
)

// DefaultMemory is the default of Options.Memory.
const DefaultMemory = 256 << 20

// Estimated sizes in bytes, with what the garbage collector needs.
const (
	opSize     = 256
	partSize   = 64
	ioSize     = 512
	stepSize   = 192
	packetSize = 1024 // without its data
)

// The memory in use is estimated after this many packets, or this much data.
const (
	checkPackets = 1 << 14
	checkBytes   = 1 << 25
)

// holder is a connection, by how much it holds.
type holder struct {
	size int
	drop func()
}

// limitMemory gives up the connections that hold most, if all hold more than Options.Memory. Whoever can
// send packets to the captured host decides how much is held: by SENDs that never end, operations that
// are never acknowledged, and I/Os without response.
func (d *Dissector) limitMemory(added int) {
	d.unchecked++
	d.uncheckedBytes += added
	if d.unchecked < checkPackets && d.uncheckedBytes < min(checkBytes, d.options.Memory/4) {
		return
	}
	d.unchecked, d.uncheckedBytes = 0, 0
	d.estimates++
	total := 0
	var all []holder
	seen := map[*conn]bool{}
	for end, ref := range d.ends {
		if !seen[ref.conn] {
			seen[ref.conn] = true
			all = append(all, holder{ref.conn.size(d.estimates), func() { d.drop(end) }})
		}
	}
	for key, s := range d.streams {
		all = append(all, holder{s.size(d.estimates), func() { d.dropStream(key) }})
	}
	for _, h := range all {
		total += h.size
	}
	if total <= d.options.Memory {
		return
	}
	slices.SortFunc(all, func(a, b holder) int { return cmp.Compare(b.size, a.size) })
	for _, h := range all {
		if total <= d.options.Memory/2 {
			break
		}
		h.drop()
		d.totals.GivenUp++
		total -= h.size
	}
}

// drop gives up a connection, with both ends.
func (d *Dissector) drop(end endpoint) {
	c := d.ends[end].conn
	d.forget(end)
	for _, other := range c.ends {
		if d.ends[other].conn == c {
			delete(d.ends, other)
		}
	}
	d.halfKnown = slices.DeleteFunc(d.halfKnown, func(h *conn) bool { return h == c })
}

func (d *Dissector) dropStream(key streamKey) {
	for _, io := range d.streams[key].open {
		d.options.OnIO(io)
	}
	delete(d.streams, key)
}

// size estimates the memory of a connection in bytes. estimate is the number of this estimate: an I/O
// counts once.
func (c *conn) size(estimate int) int {
	n := packetSize
	for i := range c.flows {
		f := &c.flows[i]
		for _, o := range f.ops {
			n += opSize + len(o.parts)*partSize
			for _, part := range o.parts {
				n += part.io.size(estimate)
			}
		}
		if o := f.sending; o != nil {
			n += cap(o.message)
			for _, p := range o.packets {
				n += packetSize + p.Length
			}
		}
	}
	return n + sizeOf(c.open, estimate) + sizeOf(c.closing, estimate)
}

func (s *stream) size(estimate int) int { return packetSize + sizeOf(s.open, estimate) }

func sizeOf(ios []*IO, estimate int) (n int) {
	for _, io := range ios {
		n += io.size(estimate)
	}
	return n
}

func (io *IO) size(estimate int) int {
	if io == nil || io.estimate == estimate {
		return 0
	}
	io.estimate = estimate
	return ioSize + cap(io.Steps)*stepSize
}
