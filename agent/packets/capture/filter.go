// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"krping/agent/packets/roce"
)

// snapLength is the maximum that is kept of a frame, in bytes: whole frames, even if the kernel has
// merged TCP segments.
const snapLength = 1 << 18

// MaxTCPPorts is the maximum number of ports in a filter: a conditional jump of classic BPF reaches
// at most 255 instructions ahead.
const MaxTCPPorts = 64

// Ethernet types and IP protocols.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	protoTCP  = 6
	protoUDP  = 17
)

// line is an instruction, with an optional label and the labels that it jumps to; "" is the next line.
type line struct {
	label     string
	op        bpf.Instruction
	then, els string
}

// filter returns the program that passes RoCEv2, and TCP from and to the ports, over IPv4, and over
// IPv6 without extension headers. VLAN tags need no handling: the kernel has removed them. A loopback
// interface shows each packet twice, sent and received; only the received one passes.
func filter(tcpPorts []uint16, loopback bool) ([]bpf.RawInstruction, error) {
	if len(tcpPorts) > MaxTCPPorts {
		return nil, fmt.Errorf("%d TCP ports, at most %d can be captured", len(tcpPorts), MaxTCPPorts)
	}
	const (
		ether   = 14 // size of the Ethernet header
		srcPort = ether
		dstPort = ether + 2
	)
	equal := func(n uint32) bpf.Instruction { return bpf.JumpIf{Cond: bpf.JumpEqual, Val: n} }
	var program []line
	if loopback {
		program = append(program, line{op: bpf.LoadExtension{Num: bpf.ExtType}}, line{op: equal(unix.PACKET_OUTGOING), then: "no"})
	}
	// Loads the size of the IP header into X, its protocol into A.
	program = append(program, []line{
		{op: bpf.LoadAbsolute{Off: ether - 2, Size: 2}},
		{op: equal(etherIPv6), then: "IPv6"},
		{op: equal(etherIPv4), els: "no"},
		{op: bpf.LoadAbsolute{Off: ether + 6, Size: 2}},
		{op: bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff}, then: "no"}, // a fragment other than the first
		{op: bpf.LoadMemShift{Off: ether}},
		{op: bpf.LoadAbsolute{Off: ether + 9, Size: 1}},
		{op: bpf.Jump{}, then: "transport"},
		{label: "IPv6", op: bpf.LoadConstant{Dst: bpf.RegX, Val: 40}},
		{op: bpf.LoadAbsolute{Off: ether + 6, Size: 1}},
		{label: "transport", op: equal(protoTCP), then: "TCP"},
		{op: equal(protoUDP), els: "no"},
		{op: bpf.LoadIndirect{Off: dstPort, Size: 2}},
		{op: equal(roce.Port), then: "yes", els: "no"},
		{label: "TCP", op: bpf.LoadIndirect{Off: srcPort, Size: 2}},
	}...)
	for _, port := range tcpPorts {
		program = append(program, line{op: equal(uint32(port)), then: "yes"})
	}
	program = append(program, line{op: bpf.LoadIndirect{Off: dstPort, Size: 2}})
	for _, port := range tcpPorts {
		program = append(program, line{op: equal(uint32(port)), then: "yes"})
	}
	program = append(program,
		line{label: "no", op: bpf.RetConstant{}},
		line{label: "yes", op: bpf.RetConstant{Val: snapLength}})
	return bpf.Assemble(resolveLabels(program))
}

// resolveLabels turns the labels into relative jumps.
func resolveLabels(program []line) []bpf.Instruction {
	at := map[string]int{}
	for i, l := range program {
		if l.label != "" {
			at[l.label] = i
		}
	}
	resolved := make([]bpf.Instruction, len(program))
	for i, l := range program {
		skip := func(to string) int {
			if to == "" {
				return 0
			}
			return at[to] - i - 1
		}
		switch op := l.op.(type) {
		case bpf.Jump:
			resolved[i] = bpf.Jump{Skip: uint32(skip(l.then))}
		case bpf.JumpIf:
			op.SkipTrue, op.SkipFalse = uint8(skip(l.then)), uint8(skip(l.els))
			resolved[i] = op
		default:
			resolved[i] = op
		}
	}
	return resolved
}
