// SPDX-License-Identifier: Apache-2.0

package packetview

import (
	"fmt"
	"net/netip"
	"time"

	"krping/agent/packets/dissect"
	"krping/agent/packets/roce"
)

// Record is a packet as JSON, the output of capture --json. Members that do not apply are omitted.
type Record struct {
	Number        int        `json:"number"` // of the frame, from 1
	Time          time.Time  `json:"time"`
	Length        int        `json:"length"` // bytes on the wire
	Src           netip.Addr `json:"src"`
	Dst           netip.Addr `json:"dst"`
	SrcPort       uint16     `json:"src_port,omitempty"` // TCP
	DstPort       uint16     `json:"dst_port,omitempty"`
	Protocol      string     `json:"protocol,omitempty"`
	What          string     `json:"what"`  // opcode, syndrome of an acknowledgement, or names of the TCP PDUs
	Bytes         int        `json:"bytes"` // of payload
	RoCE          *Headers   `json:"roce,omitempty"`
	Info          string     `json:"info,omitempty"`          // what the protocol says, for people
	Retransmitted bool       `json:"retransmitted,omitempty"` // its sequence number was in the capture before
	Lost          int        `json:"lost,omitempty"`          // packets missing before it, by sequence number
	Cut           bool       `json:"cut,omitempty"`           // not captured whole
	Error         string     `json:"error,omitempty"`         // why the packet is malformed
}

// Headers are the fields of a RoCE packet's headers.
type Headers struct {
	Opcode    uint8   `json:"opcode"`
	QP        uint32  `json:"qp"` // of the destination
	PSN       uint32  `json:"psn"`
	AckReq    bool    `json:"ack_req,omitempty"`
	RDMA      *Memory `json:"rdma,omitempty"` // RETH, AtomicETH
	Syndrome  *uint8  `json:"syndrome,omitempty"`
	MSN       *uint32 `json:"msn,omitempty"`
	SrcQP     *uint32 `json:"src_qp,omitempty"`
	Immediate *uint32 `json:"immediate,omitempty"`
	Inval     *uint32 `json:"invalidate,omitempty"` // rkey
	ICRC      string  `json:"icrc"`                 // good, bad, unverified
}

// Memory is the remote memory that a request accesses.
type Memory struct {
	Addr   uint64 `json:"addr"`
	Key    uint32 `json:"key"`
	Length uint32 `json:"length"`
}

// NewRecord returns the record of a packet.
func NewRecord(p *dissect.Packet) Record {
	r := Record{
		Number: p.Number, Time: p.Time, Length: p.Length, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort,
		Protocol: string(p.Protocol), What: p.What, Bytes: p.Bytes, Info: p.Info, Retransmitted: p.Retransmitted, Lost: p.Lost, Cut: p.Cut,
	}
	if p.Err != nil {
		r.Error = p.Err.Error()
	}
	if p.RoCE != nil {
		r.RoCE = headers(p.RoCE)
	}
	return r
}

func headers(p *roce.Packet) *Headers {
	h := &Headers{Opcode: uint8(p.BTH.Opcode), QP: p.BTH.DestQP, PSN: p.BTH.PSN, AckReq: p.BTH.AckReq, ICRC: fmt.Sprint(p.ICRC)}
	if p.RETH != nil {
		h.RDMA = &Memory{p.RETH.Addr, p.RETH.RKey, p.RETH.Length}
	}
	if p.AtomicETH != nil {
		h.RDMA = &Memory{p.AtomicETH.Addr, p.AtomicETH.RKey, 8}
	}
	if p.AETH != nil {
		syndrome := uint8(p.AETH.Syndrome)
		h.Syndrome, h.MSN = &syndrome, &p.AETH.MSN
	}
	if p.DETH != nil {
		h.SrcQP = &p.DETH.SrcQP
	}
	if p.ImmDt != nil {
		h.Immediate = &p.ImmDt.Data
	}
	if p.IETH != nil {
		h.Inval = &p.IETH.RKey
	}
	return h
}
