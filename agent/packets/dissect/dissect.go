// SPDX-License-Identifier: Apache-2.0

// Package dissect reads the protocols above RoCE and TCP (the InfiniBand connection manager,
// krping's ping/pong and block protocols, NVMe over fabrics) and finds the packets of each I/O.
// Frames may contain arbitrary bytes.
package dissect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket/layers"

	"krping/agent/packets/roce"
	"krping/agent/packets/unwrap"
)

// A Protocol is one above the transport.
type Protocol string

// The known protocols.
const (
	Verbs    Protocol = "verbs"       // RDMA operations of an unknown application
	Ping     Protocol = "krping-ping" // ping/pong of krping and rping
	Block    Protocol = "krping"      // krping's block protocol: kmod/PROTOCOL.md, section 2
	NVMeRDMA Protocol = "nvme-rdma"
	NVMeTCP  Protocol = "nvme-tcp"
	CM       Protocol = "cm"       // the InfiniBand connection manager
	Datagram Protocol = "datagram" // UD that is not of the connection manager
)

// Assumable returns the valid values of Options.Assume.
func Assumable() []Protocol { return []Protocol{Block, Ping, NVMeRDMA, Verbs} }

// Frame is one captured frame.
type Frame struct {
	Time   time.Time
	Data   []byte          // as far as it was captured
	Length int             // bytes on the wire
	Link   layers.LinkType // 0: Ethernet
}

// Packet is a frame of RoCE or NVMe/TCP, dissected.
type Packet struct {
	Number        int // of the frame, from 1
	Time          time.Time
	Length        int // bytes on the wire
	Src, Dst      netip.Addr
	SrcPort       uint16       // TCP
	DstPort       uint16       // TCP
	RoCE          *roce.Packet // nil for TCP, or if Err is set
	Protocol      Protocol     // "" if not known
	What          string       // opcode, syndrome of an acknowledgement, or names of the TCP PDUs
	Bytes         int          // of the transport's payload
	Info          string       // what the protocol says, for people
	Retransmitted bool         // its sequence number was in the capture before
	Lost          int          // packets missing before it in its direction, by sequence number
	Cut           bool         // it was not captured whole
	Err           error        // why the packet is malformed, or cannot be read as too little of it was captured

	at int // offset of the payload in the message of a SEND
}

// Options of a Dissector.
type Options struct {
	TCPPorts []uint16  // of NVMe/TCP
	Assume   Protocol  // of connections whose set-up was not captured; "": recognise it by their messages
	OnIO     func(*IO) // called once for each I/O when it is over, or given up
	Memory   int       // bytes, estimated, of what is kept of connections; 0: DefaultMemory
}

// DefaultTCPPorts are the NVMe/TCP ports registered for I/O controllers and for discovery.
var DefaultTCPPorts = []uint16{4420, 8009}

// Totals count what a Dissector has seen.
type Totals struct {
	Packets       int `json:"packets"` // of RoCE and of NVMe/TCP
	Others        int `json:"others"`  // frames that are neither
	Malformed     int `json:"malformed"`
	BadICRC       int `json:"bad_icrc"`
	Unverified    int `json:"unverified"` // RoCE packets that were not captured whole: no check of the ICRC
	Cut           int `json:"cut"`        // packets that were not captured whole, of RoCE and of NVMe/TCP
	Retransmitted int `json:"retransmitted"`
	Lost          int `json:"lost"`               // missing, by sequence number
	GivenUp       int `json:"given_up,omitempty"` // connections, to stay within Options.Memory
}

// Dissector reads frames in the order of their capture.
type Dissector struct {
	options   Options
	totals    Totals
	others    map[string]int // frames that are neither RoCE nor NVMe/TCP, by what they hold
	frames    int
	ios       int
	ends      map[endpoint]connEnd
	halfKnown []*conn // only the QP of one end is known
	requests  map[requestKey]*connectRequest
	streams   map[streamKey]*stream

	unchecked      int // packets since the last estimate of the memory in use
	uncheckedBytes int // of these packets
	estimates      int
}

// New returns a Dissector that has seen nothing.
func New(o Options) *Dissector {
	if o.OnIO == nil {
		o.OnIO = func(*IO) {}
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	return &Dissector{
		options: o, others: map[string]int{},
		ends: map[endpoint]connEnd{}, requests: map[requestKey]*connectRequest{}, streams: map[streamKey]*stream{},
	}
}

// Totals returns the counts so far.
func (d *Dissector) Totals() Totals { return d.totals }

// maxOthers is the most kinds of other frames that are told apart.
const maxOthers = 256

// Others returns how many frames were neither RoCE nor NVMe/TCP, by what they hold, the most frequent
// first: "TCP port 443: 12".
func (d *Dissector) Others() []string {
	names := slices.SortedFunc(maps.Keys(d.others), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.others[b], d.others[a]), strings.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s: %d", name, d.others[name])
	}
	return names
}

func (d *Dissector) addOther(what string) {
	d.totals.Others++
	if _, known := d.others[what]; !known && len(d.others) >= maxOthers {
		what = "others"
	}
	d.others[what]++
}

// Relevant reports whether a frame that has passed the filter of a live capture is of RoCE, or of TCP from
// or to one of the ports: the filter passes all that is in tunnels.
func Relevant(f Frame, tcpPorts []uint16) bool {
	if !unwrap.Tunnelled(f.Data) {
		return true
	}
	inner, _ := unwrap.Frame(f.Data, cmp.Or(f.Link, layers.LinkTypeEthernet), f.Length-len(f.Data))
	if inner == nil {
		return false
	}
	if tcp, ok := newSegment(inner); ok {
		return slices.Contains(tcpPorts, tcp.src) || slices.Contains(tcpPorts, tcp.dst)
	}
	r, err := roce.Decode(inner)
	return r != nil || err != nil
}

// Add reads a frame. It returns nil if the frame is neither RoCE nor NVMe/TCP. The packet refers to
// the frame's data.
func (d *Dissector) Add(f Frame) *Packet {
	d.frames++
	inner, other := unwrap.Frame(f.Data, cmp.Or(f.Link, layers.LinkTypeEthernet), f.Length-len(f.Data))
	if inner == nil {
		d.addOther(other)
		return nil
	}
	p := &Packet{Number: d.frames, Time: f.Time, Length: f.Length, Src: inner.Src, Dst: inner.Dst}
	r, err := roce.Decode(inner)
	switch {
	case errors.Is(err, roce.ErrCut):
		p.Err, p.Cut = err, true
	case err != nil:
		p.Err = err
		d.totals.Malformed++
	case r != nil:
		p.RoCE, p.Cut = r, r.Cut()
		d.addRoCE(p)
	case !d.addTCP(p, inner):
		d.addOther(other)
		return nil
	}
	d.totals.Packets++
	if p.Cut = p.Cut || len(f.Data) < f.Length; p.Cut {
		d.totals.Cut++
	}
	if p.Retransmitted {
		d.totals.Retransmitted++
	}
	d.totals.Lost += p.Lost
	d.limitMemory(len(f.Data))
	return p
}

func (d *Dissector) addRoCE(p *Packet) {
	r := p.RoCE
	switch r.ICRC {
	case roce.ICRCBad:
		d.totals.BadICRC++
	case roce.ICRCUnverified:
		d.totals.Unverified++
	}
	p.What, p.Bytes = r.BTH.Opcode.String(), r.Length
	if !r.BTH.Opcode.Known() {
		return
	}
	if r.BTH.Opcode.Service() != roce.UD {
		d.addConnected(p)
		return
	}
	p.Protocol = Datagram
	if r.BTH.DestQP == 1 {
		d.addManagement(p)
	}
}

// Close calls OnIO for the I/Os that are still in flight. It can be called repeatedly.
func (d *Dissector) Close() {
	var left []*IO
	seen := map[*conn]bool{}
	for _, ref := range d.ends {
		if !seen[ref.conn] {
			seen[ref.conn] = true
			left = append(left, ref.conn.closing...)
			left = append(left, ref.conn.open...)
		}
	}
	for _, s := range d.streams {
		left = append(left, s.open...)
	}
	slices.SortFunc(left, func(a, b *IO) int { return a.ID - b.ID })
	for _, io := range left {
		d.options.OnIO(io)
	}
	d.ends, d.streams, d.halfKnown = map[endpoint]connEnd{}, map[streamKey]*stream{}, nil
}

// joinNotes joins the notes of a message's parts, at most three of them.
func joinNotes(parts []part) string {
	const most = 3
	var texts []string
	for _, p := range parts {
		if p.note != "" {
			texts = append(texts, p.note)
		}
	}
	if len(texts) > most {
		texts = append(texts[:most], fmt.Sprintf("and %d more", len(texts)-most))
	}
	return strings.Join(texts, "; ")
}
