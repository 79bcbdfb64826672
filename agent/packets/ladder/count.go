// SPDX-License-Identifier: Apache-2.0

package ladder

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"krping/agent/packets/dissect"
)

// Kind groups I/Os that need the same packets.
type Kind struct {
	Protocol dissect.Protocol `json:"protocol"`
	Name     string           `json:"name"`
	Bytes    int              `json:"bytes"`
	Inline   bool             `json:"inline"`
}

// KindOf returns the kind of an I/O.
func KindOf(o *dissect.IO) Kind { return Kind{o.Protocol, o.Name, o.Bytes, o.Inline} }

// Cost is the packets of all I/Os of a kind.
type Cost struct {
	Kind
	IOs     int                `json:"ios"`
	Packets float64            `json:"packets"` // one that n I/Os share counts as 1/n in each
	Opcodes map[string]float64 `json:"opcodes"` // packets by opcode
	Partial int                `json:"partial"` // I/Os that are not counted: no response, or packets missing or not captured whole
	first   int                // ID of the first I/O
}

// Opcode counts the packets of an opcode, or of a combination of TCP PDUs.
type Opcode struct {
	Name    string `json:"name"`
	Packets int    `json:"packets"`
	Bytes   int    `json:"bytes"` // of payload
}

// Counts counts packets by opcode and by kind of I/O.
type Counts struct {
	opcodes map[string]*Opcode
	costs   map[Kind]*Cost
}

// NewCounts returns empty counts.
func NewCounts() *Counts { return &Counts{map[string]*Opcode{}, map[Kind]*Cost{}} }

// AddPacket counts a packet.
func (c *Counts) AddPacket(p *dissect.Packet) {
	name := p.What
	switch {
	case p.Err != nil:
		name = "malformed"
	case p.RoCE != nil:
		name = p.RoCE.BTH.Opcode.String()
	}
	o := c.opcodes[name]
	if o == nil {
		o = &Opcode{Name: name}
		c.opcodes[name] = o
	}
	o.Packets++
	o.Bytes += p.Bytes
}

// AddIO counts an I/O that is over.
func (c *Counts) AddIO(o *dissect.IO) {
	kind := KindOf(o)
	cost := c.costs[kind]
	if cost == nil {
		cost = &Cost{Kind: kind, Opcodes: map[string]float64{}, first: o.ID}
		c.costs[kind] = cost
	}
	if !o.Done || o.Lost > 0 || o.Cut {
		cost.Partial++
		return
	}
	cost.IOs++
	for _, s := range o.Steps {
		cost.Packets += s.Share
		cost.Opcodes[s.What] += s.Share
	}
}

// Opcodes returns the counts by opcode, the most frequent first.
func (c *Counts) Opcodes() []Opcode {
	opcodes := make([]Opcode, 0, len(c.opcodes))
	for _, o := range c.opcodes {
		opcodes = append(opcodes, *o)
	}
	slices.SortFunc(opcodes, func(a, b Opcode) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), strings.Compare(a.Name, b.Name))
	})
	return opcodes
}

// Costs returns the costs by kind, in the order of their first I/Os.
func (c *Counts) Costs() []Cost {
	costs := make([]Cost, 0, len(c.costs))
	for _, cost := range c.costs {
		costs = append(costs, *cost)
	}
	slices.SortFunc(costs, func(a, b Cost) int { return a.first - b.first })
	return costs
}

// Write prints Opcodes and Costs as tables.
func (c *Counts) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PACKETS\tBYTES\tOPCODE")
	for _, o := range c.Opcodes() {
		fmt.Fprintf(w, "%d\t%d\t%s\n", o.Packets, o.Bytes, o.Name)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(c.costs) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nPROTOCOL\tI/O\tBYTES\tI/OS\tPACKETS/IO\tBY OPCODE")
	for _, cost := range c.Costs() {
		name, each, parts := cost.Name, "-", ""
		if cost.Inline {
			name += " inline"
		}
		if cost.IOs > 0 {
			each = fmt.Sprintf("%.1f", cost.Packets/float64(cost.IOs))
			parts = cost.parts()
		}
		if cost.Partial > 0 {
			parts = strings.TrimPrefix(parts+fmt.Sprintf("; %d incomplete, not counted", cost.Partial), "; ")
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", cost.Protocol, name, cost.Bytes, cost.IOs, each, parts)
	}
	return w.Flush()
}

// parts returns the packets per I/O by opcode, the most frequent first.
func (c *Cost) parts() string {
	names := slices.SortedFunc(maps.Keys(c.Opcodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.Opcodes[b], c.Opcodes[a]), strings.Compare(a, b))
	})
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = strings.TrimSuffix(fmt.Sprintf("%.1f", c.Opcodes[name]/float64(c.IOs)), ".0") + " " + name
	}
	return strings.Join(texts, ", ")
}
