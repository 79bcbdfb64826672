// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/rs/zerolog/log"

	"krping/agent/packets/capture"
	"krping/agent/packets/dissect"
	"krping/agent/packets/ladder"
	"krping/agent/packets/packetview"
)

// captureView shows and saves the packets.
type captureView struct {
	flags     captureFlags
	ports     []uint16 // of NVMe/TCP
	out       *bufio.Writer
	dissector *dissect.Dissector // nil if nothing is shown
	perPacket bool               // print each packet
	counts    *ladder.Counts
	drawn     map[ladder.Kind]int
	pictures  []*dissect.IO   // for --svg
	writer    *capture.Writer // nil without --write
	seen      int
	err       error // of drawing an I/O
}

func newCaptureView(out io.Writer, f captureFlags) (*captureView, error) {
	v := &captureView{flags: f, ports: f.tcpPorts(), out: bufio.NewWriter(out), counts: ladder.NewCounts(), drawn: map[ladder.Kind]int{}}
	shown := f.ladder || f.count || f.svg != ""
	v.perPacket = !shown && (f.write == "" || f.asJSON)
	if shown || v.perPacket {
		v.dissector = dissect.New(dissect.Options{TCPPorts: v.ports, Assume: dissect.Protocol(f.assume), OnIO: v.addIO})
	}
	if f.write == "-" {
		v.writer = capture.NewWriter(os.Stdout, f.netdev)
	} else if f.write != "" {
		netdev := f.netdev
		if f.read != "" {
			netdev = "" // the origin of a file is not known
		}
		var err error
		if v.writer, err = capture.Create(f.write, netdev); err != nil {
			return nil, err
		}
	}
	if v.perPacket && !f.asJSON {
		return v, packetview.NewLines(v.out).Header()
	}
	return v, nil
}

// addIO counts and draws an I/O that is over.
func (v *captureView) addIO(o *dissect.IO) {
	v.counts.AddIO(o)
	kind := ladder.KindOf(o)
	v.drawn[kind]++
	if v.flags.svg != "" && v.drawn[kind] <= max(1, v.flags.examples) {
		v.pictures = append(v.pictures, o)
	}
	if v.flags.ladder && (v.flags.examples == 0 || v.drawn[kind] <= v.flags.examples) && v.err == nil {
		v.err = ladder.Write(v.out, o)
	}
}

// add shows and saves a packet. It returns false after --limit packets.
func (v *captureView) add(data []byte, info gopacket.CaptureInfo) (more bool, err error) {
	frame := dissect.Frame{Time: info.Timestamp.UTC(), Data: data, Length: info.Length, Link: capture.LinkType(info)}
	if v.flags.read == "" && !dissect.Relevant(frame, v.ports) { // the kernel passes whole tunnels
		return true, nil
	}
	v.seen++
	if v.writer != nil {
		if err := v.writer.Write(data, info); err != nil {
			return false, err
		}
	}
	if v.dissector != nil {
		// Clone: the dissector refers to the data until the packet's message is complete.
		frame.Data = slices.Clone(data)
		if err := v.show(v.dissector.Add(frame)); err != nil {
			return false, err
		}
	}
	return v.flags.limit == 0 || v.seen < v.flags.limit, v.err
}

func (v *captureView) show(p *dissect.Packet) error {
	switch {
	case p == nil:
		return nil
	case v.perPacket && v.flags.asJSON:
		return printJSON(v.out, packetview.NewRecord(p))
	case v.perPacket:
		return packetview.NewLines(v.out).Print(p)
	}
	v.counts.AddPacket(p)
	return nil
}

// flush prints what is buffered while no packets arrive.
func (v *captureView) flush() error {
	if v.writer != nil && v.flags.write == "-" {
		return v.writer.Flush()
	}
	return v.out.Flush()
}

// countReport is the output of --count --json.
type countReport struct {
	Opcodes []ladder.Opcode    `json:"opcodes"`
	IOs     []ladder.Cost      `json:"ios"`
	Totals  dissect.Totals     `json:"totals"`
	Kernel  capture.Statistics `json:"kernel"`
}

// end prints what needs all packets, and closes the file.
func (v *captureView) end(s capture.Statistics) error {
	var errs []error
	if v.writer != nil {
		errs = append(errs, v.writer.Close(s))
	}
	if v.dissector != nil {
		v.dissector.Close()
		errs = append(errs, v.err, v.conclude(s))
	}
	return errors.Join(append(errs, v.out.Flush())...)
}

func (v *captureView) conclude(s capture.Statistics) error {
	if v.flags.svg != "" {
		if err := v.draw(); err != nil {
			return err
		}
	}
	switch {
	case v.flags.count && v.flags.asJSON:
		return printJSON(v.out, countReport{v.counts.Opcodes(), v.counts.Costs(), v.dissector.Totals(), s})
	case v.flags.count:
		return v.counts.Write(v.out, v.flags.sizes)
	}
	return nil
}

func (v *captureView) draw() error {
	file, err := os.Create(v.flags.svg)
	if err != nil {
		return err
	}
	slices.SortFunc(v.pictures, func(a, b *dissect.IO) int { return a.ID - b.ID })
	return errors.Join(ladder.WriteSVG(file, v.pictures), file.Close())
}

// report logs the number of packets, and warnings. passed is the number of packets of any protocol that the
// interface received and sent meanwhile, 0 if they come from a file.
func (v *captureView) report(s capture.Statistics, passed uint64) {
	log.Info().Msgf("%s, %d dropped by the kernel", count(v.seen, "packet"), s.Dropped)
	if s.Dropped > 0 {
		log.Warn().Msgf("the capture is incomplete: the kernel dropped %d of %d packets", s.Dropped, s.Packets)
	}
	if v.dissector == nil {
		return
	}
	t := v.dissector.Totals()
	v.reportOthers(t, passed)
	if t.GivenUp > 0 {
		log.Warn().Msgf("%s given up before their end, to limit the memory in use: their I/Os are incomplete", count(t.GivenUp, "connection"))
	}
	for _, found := range []struct {
		n    int
		what string
	}{
		{t.Malformed, "%s malformed"}, {t.BadICRC, "%s with a bad ICRC"},
		{t.Cut, "%s not captured whole: contents are shown, and I/Os counted, as far as they are there; the ICRC was not checked"},
		{t.Lost, "%s missing, by sequence number: lost, or not captured"}, {t.Retransmitted, "%s retransmitted"},
	} {
		if found.n > 0 {
			log.Warn().Msgf(found.what, count(found.n, "packet"))
		}
	}
	if t.Retransmitted > t.Packets/3 {
		log.Warn().Msg("packets may be there twice, as a switch mirrors what it receives and what it sends: editcap -d removes the copies")
	}
}

// reportOthers tells what frames of other protocols hold, so that nothing is dropped silently.
func (v *captureView) reportOthers(t dissect.Totals, passed uint64) {
	const most = 6
	kinds := v.dissector.Others()
	if len(kinds) > most {
		kinds = append(kinds[:most], "others")
	}
	held := strings.Join(kinds, ", ")
	wanted := "RoCE, or NVMe/TCP on port " + joinPorts(v.flags.ports)
	switch {
	case t.Packets == 0 && t.Others > 0:
		log.Warn().Msgf("none of %s is %s (--port takes others): %s", count(t.Others, "frame"), wanted, held)
	case t.Others > 0:
		log.Info().Msgf("%s of other protocols: %s", count(t.Others, "frame"), held)
	case t.Packets == 0 && passed > 0:
		log.Warn().Msgf("%s received and sent %d packets meanwhile; none was %s (--port takes others); RDMA that a NIC does in hardware is not captured: see --help",
			v.flags.netdev, passed, wanted)
	case t.Packets == 0 && v.flags.read == "":
		log.Warn().Msgf("%s received and sent no packets", v.flags.netdev)
	case t.Packets == 0:
		log.Warn().Msg("the file has no packets")
	}
}

func joinPorts(ports []uint) string {
	texts := make([]string, len(ports))
	for i, port := range ports {
		texts[i] = strconv.FormatUint(uint64(port), 10)
	}
	return strings.Join(texts, " or ")
}
