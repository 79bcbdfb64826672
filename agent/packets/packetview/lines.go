// SPDX-License-Identifier: Apache-2.0

// Package packetview prints captured packets, as a line or a JSON object each.
package packetview

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"krping/agent/packets/dissect"
	"krping/agent/packets/roce"
	"krping/bridge/display"
)

// Lines prints one line per packet.
type Lines struct{ w io.Writer }

// NewLines returns Lines that prints to w.
func NewLines(w io.Writer) Lines { return Lines{w} }

// Header prints the names of the columns.
func (l Lines) Header() error {
	_, err := fmt.Fprintf(l.w, "%-15s %-34s %-8s %8s %-12s %-26s %6s INFO\n", "TIME (UTC)", "FROM > TO", "QP", "PSN", "PROTOCOL", "OPCODE", "BYTES")
	return err
}

// Print prints a packet.
func (l Lines) Print(p *dissect.Packet) error {
	between := address(p.Src, p.SrcPort) + " > " + address(p.Dst, p.DstPort)
	qp, psn := "-", "-"
	if p.RoCE != nil {
		qp, psn = fmt.Sprintf("%#x", p.RoCE.BTH.DestQP), fmt.Sprint(p.RoCE.BTH.PSN)
	}
	_, err := fmt.Fprintln(l.w, strings.TrimRight(fmt.Sprintf("%-15s %-34s %-8s %8s %-12s %-26s %6d %s",
		p.Time.UTC().Format("15:04:05.000000"), between, qp, psn, p.Protocol, p.What, p.Bytes, display.Text(strings.Join(remarks(p), "; "))), " "))
	return err
}

func address(a netip.Addr, port uint16) string {
	switch {
	case !a.IsValid():
		return "?"
	case port != 0:
		return netip.AddrPortFrom(a, port).String()
	}
	return a.String()
}

// remarks returns the texts for the INFO column.
func remarks(p *dissect.Packet) []string {
	var texts []string
	if p.Err != nil {
		texts = append(texts, p.Err.Error())
	}
	if p.Info != "" {
		texts = append(texts, p.Info)
	}
	if r := p.RoCE; r != nil {
		if r.ImmDt != nil {
			texts = append(texts, fmt.Sprintf("immediate %#x", r.ImmDt.Data))
		}
		if r.ICRC == roce.ICRCBad {
			texts = append(texts, fmt.Sprintf("bad ICRC %#08x", r.Received))
		}
	}
	if p.Cut && p.Err == nil {
		texts = append(texts, "not captured whole")
	}
	if p.Retransmitted {
		texts = append(texts, "retransmission")
	}
	if p.Lost > 0 {
		texts = append(texts, fmt.Sprintf("missing before this packet: %d", p.Lost))
	}
	return texts
}
