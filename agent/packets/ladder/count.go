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

// manySizes is the number of sizes from which the I/Os of a name share rows.
const manySizes = 8

// row is a line of the table of costs: of one size, or of a class of sizes.
type row struct {
	Cost
	most int // bytes; Cost.Bytes are the least
}

// rows returns the costs, with I/Os of many sizes in classes unless each size is wanted. A class is up to
// 4 KiB, up to 16 KiB, and so on.
func (c *Counts) rows(eachSize bool) (rows []row, classes bool) {
	type name struct {
		protocol dissect.Protocol
		name     string
	}
	sizes := map[name]int{}
	for kind := range c.costs {
		sizes[name{kind.Protocol, kind.Name}]++
	}
	at := map[Kind]int{}
	for _, cost := range c.Costs() {
		class := cost.Kind
		if !eachSize && sizes[name{cost.Protocol, cost.Name}] > manySizes {
			class.Bytes = sizeClass(cost.Bytes)
		} else {
			class.Bytes = -cost.Bytes // not a class
		}
		i, found := at[class]
		if !found {
			at[class] = len(rows)
			cost.Opcodes = maps.Clone(cost.Opcodes)
			rows = append(rows, row{cost, cost.Bytes})
			continue
		}
		classes = true
		rows[i].merge(cost)
	}
	return rows, classes
}

// sizeClass returns the most bytes of the class that a size belongs to.
func sizeClass(bytes int) int {
	most := 4 << 10
	for most < bytes {
		most *= 4
	}
	return most
}

func (r *row) merge(more Cost) {
	r.Bytes, r.most = min(r.Bytes, more.Bytes), max(r.most, more.Bytes)
	r.IOs += more.IOs
	r.Packets += more.Packets
	r.Partial += more.Partial
	for opcode, packets := range more.Opcodes {
		r.Opcodes[opcode] += packets
	}
}

// bytes returns the sizes of the row's I/Os.
func (r *row) bytes() string {
	if r.most > r.Bytes {
		return fmt.Sprintf("%d-%d", r.Bytes, r.most)
	}
	return fmt.Sprint(r.Bytes)
}

// Write prints Opcodes and Costs as tables. I/Os of many sizes share rows unless each size is wanted.
func (c *Counts) Write(out io.Writer, eachSize bool) error {
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
	rows, classes := c.rows(eachSize)
	for _, cost := range rows {
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", cost.Protocol, name, cost.bytes(), cost.IOs, each, parts)
	}
	if classes {
		fmt.Fprintln(w, "\nRows are of ranges of sizes: --sizes shows each size.")
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
