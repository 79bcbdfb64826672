// SPDX-License-Identifier: Apache-2.0

// Package dissect reads what RoCEv2 and TCP carry: connections as the connection manager makes
// them, krping's ping/pong and block protocol, NVMe over fabrics; and it finds the packets that
// belong to each I/O. Packets are trusted with nothing: any bytes may come.
package dissect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"krping/agent/packets/roce"
)

// A Protocol is what speaks above the transport.
type Protocol string

// Protocols that are known.
const (
	Verbs    Protocol = "verbs"       // RDMA operations of an application that is not known
	Ping     Protocol = "krping-ping" // krping's and rping's ping/pong
	Block    Protocol = "krping"      // kmod/PROTOCOL.md, section 2
	NVMeRDMA Protocol = "nvme-rdma"
	NVMeTCP  Protocol = "nvme-tcp"
	CM       Protocol = "cm" // the InfiniBand connection manager
	Datagram Protocol = "datagram"
)

// Assumable are the protocols that connections can be said to have.
func Assumable() []Protocol { return []Protocol{Block, Ping, NVMeRDMA, Verbs} }

// Frame is what was captured of one Ethernet frame.
type Frame struct {
	Time   time.Time
	Data   []byte
	Length int // bytes on the wire
}

// Packet is a frame that was understood, or tells why not.
type Packet struct {
	Number   int // of the frame, from 1
	Time     time.Time
	Length   int // bytes on the wire
	Src, Dst netip.Addr
	SrcPort  uint16       // TCP
	DstPort  uint16       // TCP
	RoCE     *roce.Packet // nil for TCP, and where Err says why
	Protocol Protocol
	What     string // opcode, or the PDUs of TCP
	Bytes    int    // payload of the transport
	Info     string // what the protocol says
	Again    bool   // sent again: its sequence number was there already
	Lost     int    // packets before it, of its direction, that are not in the capture
	Err      error

	at int // of a SEND: where in the message its payload begins
}

// Options of a Dissector.
type Options struct {
	TCPPorts []uint16 // of NVMe/TCP
	Assume   Protocol // of connections whose set-up was not captured; "" to look at their messages
	OnIO     func(*IO)
}

// DefaultTCPPorts are those of NVMe/TCP: of an I/O controller and of discovery.
var DefaultTCPPorts = []uint16{4420, 8009}

// Totals of what a Dissector has seen.
type Totals struct {
	Packets   int `json:"packets"` // of RoCE and of NVMe/TCP
	Others    int `json:"others"`  // frames that are neither
	Malformed int `json:"malformed"`
	WrongICRC int `json:"wrong_icrc"`
	Unchecked int `json:"unchecked"` // RoCE packets of which not all was captured
	Again     int `json:"again"`     // sent again
	Lost      int `json:"lost"`      // missing, by their sequence numbers
}

// Dissector reads frames in the order of their capture.
type Dissector struct {
	options Options
	totals  Totals
	frames  int
	ios     int
	ends    map[endpoint]reference
	halves  []*conn // of which the QP of one end only is known
	asked   map[request]*connectRequest
	streams map[streamKey]*stream
}

// New returns a Dissector.
func New(o Options) *Dissector {
	if o.OnIO == nil {
		o.OnIO = func(*IO) {}
	}
	return &Dissector{
		options: o, ends: map[endpoint]reference{}, asked: map[request]*connectRequest{}, streams: map[streamKey]*stream{},
	}
}

// Totals returns what was seen so far.
func (d *Dissector) Totals() Totals { return d.totals }

// Add reads a frame. It returns nil for one that is neither RoCE nor NVMe/TCP. What is returned
// refers to the frame's data.
func (d *Dissector) Add(f Frame) *Packet {
	d.frames++
	frame := gopacket.NewPacket(f.Data, layers.LinkTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	p := &Packet{Number: d.frames, Time: f.Time, Length: f.Length}
	r, err := roce.FromFrame(frame)
	switch {
	case err != nil:
		p.Err = err
		p.Src, p.Dst = addresses(frame)
		d.totals.Malformed++
	case r != nil:
		p.RoCE, p.Src, p.Dst = r, r.Src, r.Dst
		d.addRoCE(p)
	default:
		if !d.addTCP(p, frame) {
			d.totals.Others++
			return nil
		}
	}
	d.totals.Packets++
	if p.Again {
		d.totals.Again++
	}
	d.totals.Lost += p.Lost
	return p
}

func addresses(frame gopacket.Packet) (src, dst netip.Addr) {
	if network := frame.NetworkLayer(); network != nil {
		flow := network.NetworkFlow()
		src, _ = netip.AddrFromSlice(flow.Src().Raw())
		dst, _ = netip.AddrFromSlice(flow.Dst().Raw())
	}
	return src, dst
}

func (d *Dissector) addRoCE(p *Packet) {
	r := p.RoCE
	switch r.ICRC {
	case roce.Wrong:
		d.totals.WrongICRC++
	case roce.Unchecked:
		d.totals.Unchecked++
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

// Close ends the I/Os that are still in flight: they are not Done.
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
	d.ends, d.streams, d.halves = map[endpoint]reference{}, map[streamKey]*stream{}, nil
}

// listed joins what the parts of a message say, but not all of many.
func listed(parts []part) string {
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
