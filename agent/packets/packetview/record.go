// SPDX-License-Identifier: Apache-2.0

package packetview

import (
	"fmt"
	"net/netip"
	"time"

	"krping/agent/packets/dissect"
	"krping/agent/packets/roce"
)

// Record is a packet as JSON. Members that a packet has not are left out.
type Record struct {
	Number   int        `json:"number"` // of the frame, from 1
	Time     time.Time  `json:"time"`
	Length   int        `json:"length"` // bytes on the wire
	Src      netip.Addr `json:"src"`
	Dst      netip.Addr `json:"dst"`
	SrcPort  uint16     `json:"src_port,omitempty"` // TCP
	DstPort  uint16     `json:"dst_port,omitempty"`
	Protocol string     `json:"protocol,omitempty"`
	What     string     `json:"what"`
	Bytes    int        `json:"bytes"` // of payload
	RoCE     *Headers   `json:"roce,omitempty"`
	Info     string     `json:"info,omitempty"`
	Again    bool       `json:"again,omitempty"`
	Lost     int        `json:"lost,omitempty"`
	Error    string     `json:"error,omitempty"`
}

// Headers are those of RoCE.
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
	Inval     *uint32 `json:"invalidate,omitempty"` // key
	ICRC      string  `json:"icrc"`                 // right, wrong, unchecked
}

// Memory is what a request reaches.
type Memory struct {
	Addr   uint64 `json:"addr"`
	Key    uint32 `json:"key"`
	Length uint32 `json:"length"`
}

// NewRecord returns a packet's.
func NewRecord(p *dissect.Packet) Record {
	r := Record{
		Number: p.Number, Time: p.Time, Length: p.Length, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort,
		Protocol: string(p.Protocol), What: p.What, Bytes: p.Bytes, Info: p.Info, Again: p.Again, Lost: p.Lost,
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
