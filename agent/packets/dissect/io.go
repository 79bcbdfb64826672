// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"fmt"
	"net/netip"
	"time"
)

// IO is one I/O, or one operation of a protocol that is not known, with the packets it cost.
type IO struct {
	ID           int // from 1, in the order in which they began
	Protocol     Protocol
	Name         string // "Write", "READ", "ping"
	Bytes        int    // of data
	Inline       bool   // the data travels in the command's or the response's message
	Subject      string // what the I/O is about, beyond its name: "nsid 1, lba 0"
	Status       string // of its response, "" without one
	Host, Target netip.Addr
	Steps        []Step // its packets, in the order of their capture
	Done         bool   // its response was captured
	Lost         int    // packets of its connection that are missing, while it was in flight

	tag       uint32 // of its command
	addr      uint64 // its memory, at the host
	rkey      uint32
	answer    uint32 // PSN of the last packet of its response
	answerEnd int    // which end sent that
}

// Step is one packet of an I/O.
type Step struct {
	Number   int // of the frame
	Time     time.Time
	FromHost bool
	What     string  // opcode, or PDU
	Note     string  // what it says about this I/O
	Bytes    int     // of data that it moves, without headers and commands
	Share    float64 // 1 if the packet is this I/O's alone, 1/n if it has part of n
	Again    bool
}

// Packets returns what the I/O costs: a packet that it shares counts in part.
func (io *IO) Packets() float64 {
	sum := 0.0
	for _, s := range io.Steps {
		sum += s.Share
	}
	return sum
}

// Duration is from its first packet to its last.
func (io *IO) Duration() time.Duration {
	if len(io.Steps) == 0 {
		return 0
	}
	return io.Steps[len(io.Steps)-1].Time.Sub(io.Steps[0].Time)
}

// part is what one message says about one I/O.
type part struct {
	io   *IO
	note string
	ends bool // it is the I/O's response
	// where in the message its inline data is, in bytes: none if both are the same
	from, to int
	data     int // of NVMe/TCP: bytes of its data in the packet
}

// attach makes a packet a step of the I/Os that it is part of.
func attach(p *Packet, fromHost bool, parts []part) {
	for _, part := range parts {
		if part.io == nil {
			continue
		}
		note := part.note
		if note != "" && len(parts) > 1 {
			note = fmt.Sprintf("one of %d: %s", len(parts), note)
		}
		if part.io.Host != part.io.Target {
			fromHost = p.Src == part.io.Host // of verbs, either end may be an operation's host
		}
		part.io.Steps = append(part.io.Steps, Step{
			Number: p.Number, Time: p.Time, FromHost: fromHost, What: p.What, Note: note, Bytes: p.moved(part),
			Share: 1 / float64(len(parts)), Again: p.Again,
		})
	}
}

// moved returns how much of an I/O's data a packet has, in bytes.
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
