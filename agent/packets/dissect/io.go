// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"fmt"
	"net/netip"
	"time"
)

// IO is one I/O with its packets. If the protocol is not known, it is one RDMA operation.
type IO struct {
	ID           int // from 1, in order of the first packets
	Protocol     Protocol
	Name         string // "Write", "READ", "ping"
	Bytes        int    // of data
	Inline       bool   // the data is in the message of the command or of the response
	Detail       string // "nsid 1, lba 0"
	Status       string // of the response; "" without one
	Host, Target netip.Addr
	Steps        []Step // its packets, in the order of their capture
	Done         bool   // the response was captured
	Lost         int    // packets of the connection that are missing from the time it was in flight
	Cut          bool   // packets may be its own, but too little of them was captured to tell

	tag       uint32  // of its command
	addr      uint64  // of its memory at the host
	rkey      uint32  // 0 if it has none
	blind     bool    // addr and rkey were not captured
	unsized   bool    // Bytes was not captured, and is the sum of what its packets move
	answer    uint32  // PSN of the last packet of its response
	answerEnd int     // index of the end that sent it
	more      float64 // sum of the shares of the packets that are not in Steps
	estimate  int     // in which it was counted last
}

// maxSteps is the most packets that an I/O keeps: enough for 32 MiB in packets of 1 KiB. Of more, only
// the last one is kept.
const maxSteps = 1 << 15

// Step is one packet of an I/O.
type Step struct {
	Number        int // of the frame
	Time          time.Time
	FromHost      bool
	What          string  // opcode, or PDU
	Note          string  // what the packet says about this I/O
	Bytes         int     // of the I/O's data in the packet, without headers and commands
	Share         float64 // 1/n if the packet belongs to n I/Os
	Retransmitted bool
}

// Packets returns the number of the I/O's packets. One that n I/Os share counts as 1/n.
func (io *IO) Packets() float64 {
	sum := io.more
	for _, s := range io.Steps {
		sum += s.Share
	}
	return sum
}

// Duration returns the time from the first packet to the last.
func (io *IO) Duration() time.Duration {
	if len(io.Steps) == 0 {
		return 0
	}
	return io.Steps[len(io.Steps)-1].Time.Sub(io.Steps[0].Time)
}

// part is what one message says about one I/O.
type part struct {
	io       *IO
	note     string
	ends     bool // it is the I/O's response
	from, to int  // RDMA: range of its inline data in the message, in bytes; empty if it has none
	data     int  // NVMe/TCP: bytes of its data in the packet
}

// addStep adds a packet to the I/Os that it belongs to.
func addStep(p *Packet, fromHost bool, parts []part) {
	for _, part := range parts {
		if part.io == nil {
			continue
		}
		note := part.note
		if note != "" && len(parts) > 1 {
			note = fmt.Sprintf("one of %d: %s", len(parts), note)
		}
		if part.io.Host != part.io.Target {
			fromHost = p.Src == part.io.Host // with verbs, either end may be the host of an operation
		}
		part.io.add(Step{
			Number: p.Number, Time: p.Time, FromHost: fromHost, What: p.What, Note: note, Bytes: p.moved(part),
			Share: 1 / float64(len(parts)), Retransmitted: p.Retransmitted,
		})
	}
}

func (io *IO) add(s Step) {
	if io.unsized && !s.Retransmitted {
		io.Bytes += s.Bytes
	}
	if len(io.Steps) < maxSteps {
		io.Steps = append(io.Steps, s)
		return
	}
	last := &io.Steps[maxSteps-1]
	io.more += last.Share
	*last = s
}

// moved returns the bytes of an I/O's data in the packet.
func (p *Packet) moved(of part) int {
	switch {
	case p.RoCE == nil:
		return of.data
	case p.RoCE.BTH.Opcode.IsSend():
		return max(0, min(p.at+p.Bytes, of.to)-max(p.at, of.from))
	case p.RoCE.BTH.Opcode.IsResponse(), p.RoCE.BTH.Opcode.IsWrite():
		return p.Bytes
	}
	return 0
}
