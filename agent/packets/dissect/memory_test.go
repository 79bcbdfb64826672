// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"net/netip"
	"runtime"
	"testing"

	"krping/agent/packets/roce"
)

var attacker, victim = netip.MustParseAddr("10.0.0.66"), netip.MustParseAddr("10.0.0.1")

// packet adds a packet of the attacker's to the Dissector.
func (d *Dissector) packet(qp, psn uint32, opcode roce.Opcode, payload []byte) *Packet {
	p := &Packet{Src: attacker, Dst: victim, Length: len(payload) + 60, RoCE: &roce.Packet{
		Src: attacker, Dst: victim, BTH: &roce.BTH{Opcode: opcode, DestQP: qp, PSN: psn & psnMask}, Payload: payload, Length: len(payload), ICRC: roce.ICRCGood,
		RETH: &roce.RETH{Addr: 0x10000, RKey: 1, Length: uint32(len(payload))},
	}}
	d.addRoCE(p)
	d.limitMemory(p.Length)
	return p
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// What is kept is bounded, whatever is captured.
func TestMemoryIsBounded(t *testing.T) {
	const memory = 8 << 20
	payload := func() []byte { return make([]byte, 1024) } // of each packet its own, as of a frame
	for name, flood := range map[string]func(*Dissector){
		"SENDs that do not end": func(d *Dissector) {
			for psn := range uint32(200) {
				for qp := range uint32(500) {
					opcode := roce.RC | roce.SendMiddle
					if psn == 0 {
						opcode = roce.RC | roce.SendFirst
					}
					d.packet(qp+2, psn, opcode, payload())
				}
			}
		},
		"SENDs that are begun again": func(d *Dissector) {
			for i := range uint32(100000) {
				d.packet(i/400+2, i, roce.RC|roce.SendFirst, payload())
			}
		},
		"operations without response": func(d *Dissector) {
			for i := range uint32(200000) {
				d.packet(i/2000+2, i, roce.RC|roce.WriteOnly, payload())
			}
		},
	} {
		before := heap()
		ended := 0
		d := New(Options{Memory: memory, OnIO: func(*IO) { ended++ }})
		flood(d)
		if used := heap() - before; used > 4*memory {
			t.Errorf("%s: %d MiB are kept, %d are allowed", name, used>>20, memory>>20)
		}
		if d.totals.GivenUp == 0 {
			t.Errorf("%s: no connection was given up", name)
		}
		for end, ref := range d.ends {
			if ref.conn.ends[ref.end] != end {
				t.Errorf("%s: %v belongs to %v", name, end, ref.conn.ends)
			}
		}
		d.Close()
		if ended != d.ios {
			t.Errorf("%s: %d of %d I/Os were reported", name, ended, d.ios)
		}
		runtime.KeepAlive(d)
	}
}

// An I/O with very many packets keeps a part of them, but counts all.
func TestStepsAreBounded(t *testing.T) {
	io := &IO{}
	const n = maxSteps + 1000
	for i := range n {
		addStep(&Packet{Number: i, RoCE: &roce.Packet{BTH: &roce.BTH{}}}, true, []part{{io: io}})
	}
	if len(io.Steps) != maxSteps || io.Packets() != n || io.Steps[maxSteps-1].Number != n-1 {
		t.Errorf("%d steps, %v packets, the last is %d", len(io.Steps), io.Packets(), io.Steps[len(io.Steps)-1].Number)
	}
}
