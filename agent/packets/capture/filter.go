// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"krping/agent/packets/roce"
	"krping/agent/packets/unwrap"
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
	protoGRE  = 47
)

// etherTags are the Ethernet types of VLAN tags.
var etherTags = []uint32{0x8100, 0x88a8, 0x9100, 0x9200}

// line is an instruction, with an optional label and the labels that it jumps to; "" is the next line.
type line struct {
	label     string
	op        bpf.Instruction
	then, els string
}

const etherSize = 14 // bytes of an Ethernet header

// filter returns the program that passes RoCE, TCP from and to the ports, and the tunnels that may carry
// these, over IPv4, and over IPv6 without extension headers, below up to two VLAN tags: the kernel has
// removed the outermost one of 802.1Q and 802.1ad. A loopback interface shows each packet twice, sent and
// received; only the received one passes.
func filter(tcpPorts []uint16, loopback bool) ([]bpf.RawInstruction, error) {
	if len(tcpPorts) > MaxTCPPorts {
		return nil, fmt.Errorf("%d TCP ports, at most %d can be captured", len(tcpPorts), MaxTCPPorts)
	}
	var program []line
	if loopback {
		program = append(program, line{op: bpf.LoadExtension{Num: bpf.ExtType}}, line{op: equal(unix.PACKET_OUTGOING), then: "0 no"})
	}
	const most = 2
	for tags := range uint32(most + 1) {
		program = append(program, below(tags, tags == most, tcpPorts)...)
	}
	return bpf.Assemble(resolveLabels(program))
}

func equal(n uint32) bpf.Instruction { return bpf.JumpIf{Cond: bpf.JumpEqual, Val: n} }

// below returns the part of the program for frames with this number of VLAN tags. The labels of each part
// are its own, as jumps are short.
func below(tags uint32, last bool, tcpPorts []uint16) []line {
	at := etherSize + 4*tags // where the IP header begins
	label := func(name string) string { return fmt.Sprintf("%d %s", tags, name) }
	yes, no := label("yes"), label("no")
	// Loads the size of the IP header into X, its protocol into A.
	part := []line{
		{label: label("type"), op: bpf.LoadAbsolute{Off: at - 2, Size: 2}},
		{op: equal(etherIPv6), then: label("IPv6")},
		{op: equal(etherIPv4), then: label("IPv4")},
		{op: equal(unwrap.EtherRoCE), then: yes},
	}
	for _, kind := range etherTags {
		if !last {
			part = append(part, line{op: equal(kind), then: fmt.Sprintf("%d type", tags+1)})
		}
	}
	part = append(part, []line{
		{label: no, op: bpf.RetConstant{}},
		{label: label("IPv4"), op: bpf.LoadAbsolute{Off: at + 6, Size: 2}},
		{op: bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff}, then: label("other")}, // a fragment other than the first
		{op: bpf.LoadMemShift{Off: at}},
		{op: bpf.LoadAbsolute{Off: at + 9, Size: 1}},
		{op: bpf.Jump{}, then: label("transport")},
		{label: label("IPv6"), op: bpf.LoadConstant{Dst: bpf.RegX, Val: 40}},
		{op: bpf.LoadAbsolute{Off: at + 6, Size: 1}},
		{label: label("transport"), op: equal(uint32(unwrap.TCP)), then: label("TCP")},
		{op: equal(protoGRE), then: yes},
		{op: equal(uint32(unwrap.UDP)), els: label("other")},
		{op: bpf.LoadIndirect{Off: at + 2, Size: 2}},
		{op: equal(roce.Port), then: yes},
		{op: equal(unwrap.PortVXLAN), then: yes},
		{op: equal(unwrap.PortVXLANLinux), then: yes},
		{op: equal(unwrap.PortGeneve), then: yes, els: label("other")},
		{label: label("TCP"), op: bpf.LoadIndirect{Off: at, Size: 2}},
	}...)
	for _, port := range tcpPorts {
		part = append(part, line{op: equal(uint32(port)), then: yes})
	}
	part = append(part, line{op: bpf.LoadIndirect{Off: at + 2, Size: 2}})
	for _, port := range tcpPorts {
		part = append(part, line{op: equal(uint32(port)), then: yes})
	}
	return append(part,
		line{label: label("other"), op: bpf.RetConstant{}},
		line{label: yes, op: bpf.RetConstant{Val: snapLength}})
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
