// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"krping/agent/packets/capture"
	"krping/agent/packets/dissect"
	"krping/agent/packets/ladder"
	"krping/agent/packets/packetview"
)

// captureFlags are the flags of capture.
type captureFlags struct {
	netdev, read, write string
	ladder, count       bool
	svg                 string
	examples            int
	asJSON              bool
	limit               int
	duration            time.Duration
	ports               []uint
	assume              string
}

func captureCommand(p *program) *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "Capture RoCE and NVMe/TCP packets, or read a capture file, and show the packets of each I/O",
		Long: `Capture packets of RoCEv2 (UDP port 4791) and NVMe/TCP, or read a pcapng or pcap file, and print
one line per packet: the transport headers, and the contents of krping's protocols and NVMe over
Fabrics.

--ladder draws each I/O as a sequence diagram of host and target, --svg FILE draws it as a
picture, and --count counts packets by opcode and per I/O. --write FILE saves the packets,
including their data, as pcapng for Wireshark; nothing is printed unless another output is
requested, too.

Capturing needs CAP_NET_RAW, which root has; reading a file needs no privileges. The kernel filters
the packets, and the number that it had to drop is shown at the end. A NIC that does RDMA in
hardware does not pass its RoCE packets to the kernel: capture those at a mirror port of the
switch. Soft-RoCE's packets are captured, except those between two addresses of the same host.

The protocol of a connection is known from its set-up. If that was not captured, the protocol is
recognised by its messages, or given with --protocol.`,
		Example: `  krpingctl capture --interface eth0
  krpingctl capture --interface eth0 --write io.pcapng --duration 10s
  krpingctl capture --read io.pcapng --ladder --examples 1
  krpingctl capture --read io.pcapng --count`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return p.capture(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.netdev, "interface", "eth0", "network `interface` to capture from")
	flags.StringVar(&f.read, "read", "", "read this `file` instead: pcapng or pcap, optionally compressed with gzip")
	flags.StringVar(&f.write, "write", "", "save the packets in this `file`, as pcapng")
	flags.BoolVar(&f.ladder, "ladder", false, "draw each I/O as a sequence diagram")
	flags.StringVar(&f.svg, "svg", "", "draw I/Os in this `file`, as SVG")
	flags.IntVar(&f.examples, "examples", 0, "draw only the first `n` I/Os of each kind and size (default: --ladder all, --svg 1)")
	flags.BoolVar(&f.count, "count", false, "count packets by opcode and per I/O")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object per packet; with --count one for all")
	flags.IntVar(&f.limit, "limit", 0, "stop after this `number` of packets")
	flags.DurationVar(&f.duration, "duration", 0, "stop after this `time` (default: when interrupted)")
	flags.UintSliceVar(&f.ports, "port", portNumbers(dissect.DefaultTCPPorts), "TCP ports of NVMe/TCP, separated by commas")
	flags.StringVar(&f.assume, "protocol", "", "`protocol` of connections whose set-up was not captured: "+protocolNames())
	return cmd
}

func portNumbers(ports []uint16) []uint {
	numbers := make([]uint, len(ports))
	for i, port := range ports {
		numbers[i] = uint(port)
	}
	return numbers
}

func protocolNames() string {
	var names []string
	for _, p := range dissect.Assumable() {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

func (f *captureFlags) check(cmd *cobra.Command) error {
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	switch {
	case f.read != "" && given("interface"):
		return usagef("--read and --interface: packets come from a file or from an interface, not both")
	case f.read != "" && f.duration != 0:
		return usagef("--read and --duration: a file has no duration; use --limit to stop before its end")
	case given("limit") && f.limit < 1:
		return usagef("--limit %d: must be 1 or more", f.limit)
	case given("duration") && f.duration <= 0:
		return usagef("--duration %v: must be longer than 0", f.duration)
	case given("examples") && f.examples < 1:
		return usagef("--examples %d: must be 1 or more", f.examples)
	case given("examples") && !f.ladder && f.svg == "":
		return usagef("--examples: needs --ladder or --svg")
	case f.asJSON && f.ladder:
		return usagef("--json and --ladder: give one of them")
	case f.assume != "" && !slices.Contains(dissect.Assumable(), dissect.Protocol(f.assume)):
		return usagef("--protocol %s: must be one of %s", f.assume, protocolNames())
	case len(f.ports) > capture.MaxTCPPorts:
		return usagef("--port: %d ports given, at most %d are possible", len(f.ports), capture.MaxTCPPorts)
	}
	for _, port := range f.ports {
		if port < 1 || port > 65535 {
			return usagef("--port %d: must be 1 to 65535", port)
		}
	}
	return checkOutputs([]namedFile{{"--read", f.read}}, namedFile{"--write", f.write}, namedFile{"--svg", f.svg})
}

func (f *captureFlags) tcpPorts() []uint16 {
	ports := make([]uint16, len(f.ports))
	for i, port := range f.ports {
		ports[i] = uint16(port)
	}
	return ports
}

// captureView shows and saves the packets.
type captureView struct {
	flags     captureFlags
	out       *bufio.Writer
	dissector *dissect.Dissector // nil if nothing is shown
	perPacket bool               // print each packet
	encoder   *json.Encoder
	counts    *ladder.Counts
	drawn     map[ladder.Kind]int
	pictures  []*dissect.IO   // for --svg
	writer    *capture.Writer // nil without --write
	seen      int
	err       error // of drawing an I/O
}

func newCaptureView(out io.Writer, f captureFlags) (*captureView, error) {
	v := &captureView{flags: f, out: bufio.NewWriter(out), counts: ladder.NewCounts(), drawn: map[ladder.Kind]int{}}
	v.encoder = json.NewEncoder(v.out)
	v.encoder.SetEscapeHTML(false)
	shown := f.ladder || f.count || f.svg != ""
	v.perPacket = !shown && (f.write == "" || f.asJSON)
	if shown || v.perPacket {
		v.dissector = dissect.New(dissect.Options{TCPPorts: f.tcpPorts(), Assume: dissect.Protocol(f.assume), OnIO: v.addIO})
	}
	if f.write != "" {
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
	v.seen++
	if v.writer != nil {
		if err := v.writer.Write(data, info); err != nil {
			return false, err
		}
	}
	if v.dissector != nil {
		// Clone: the dissector refers to the data until the packet's message is complete.
		if err := v.show(v.dissector.Add(dissect.Frame{
			Time: info.Timestamp.UTC(), Data: slices.Clone(data), Length: info.Length, Link: capture.LinkType(info),
		})); err != nil {
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
		return v.encoder.Encode(packetview.NewRecord(p))
	case v.perPacket:
		return packetview.NewLines(v.out).Print(p)
	}
	v.counts.AddPacket(p)
	return nil
}

// flush prints what is buffered while no packets arrive.
func (v *captureView) flush() error { return v.out.Flush() }

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
		return v.encoder.Encode(countReport{v.counts.Opcodes(), v.counts.Costs(), v.dissector.Totals(), s})
	case v.flags.count:
		return v.counts.Write(v.out)
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

// report logs the number of packets, and warnings.
func (v *captureView) report(s capture.Statistics) {
	log.Info().Msgf("%s, %d dropped by the kernel", count(v.seen, "packet"), s.Dropped)
	if s.Dropped > 0 {
		log.Warn().Msgf("the capture is incomplete: the kernel dropped %d of %d packets", s.Dropped, s.Packets)
	}
	if v.dissector == nil {
		return
	}
	t := v.dissector.Totals()
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
}

func (p *program) capture(ctx context.Context, f captureFlags) error {
	source, err := openSource(f)
	if err != nil {
		return err
	}
	defer source.close()
	v, err := newCaptureView(p.out, f)
	if err != nil {
		return err
	}
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	s, err := source.run(ctx, v)
	err = errors.Join(err, v.end(s))
	v.report(s)
	return err
}

// packetSource is a file or an interface.
type packetSource struct {
	run   func(context.Context, *captureView) (capture.Statistics, error)
	close func()
}

func openSource(f captureFlags) (packetSource, error) {
	if f.read != "" {
		file, err := os.Open(f.read)
		if err != nil {
			return packetSource{}, err
		}
		return packetSource{
			func(ctx context.Context, v *captureView) (capture.Statistics, error) {
				s, err := capture.Read(file, func(data []byte, info gopacket.CaptureInfo) (bool, error) {
					if ctx.Err() != nil {
						return false, ctx.Err()
					}
					return v.add(data, info)
				})
				if err != nil {
					err = fmt.Errorf("read %s: %w", f.read, err)
				}
				return s, err
			},
			func() { _ = file.Close() },
		}, nil
	}
	live, err := capture.Open(f.netdev, f.tcpPorts())
	if errors.Is(err, unix.EPERM) {
		return packetSource{}, fmt.Errorf("%w: capturing needs CAP_NET_RAW", err)
	}
	if err != nil {
		return packetSource{}, err
	}
	log.Info().Msgf("capturing from %s", f.netdev)
	return packetSource{
		func(ctx context.Context, v *captureView) (capture.Statistics, error) {
			err := live.Run(ctx, v.add, v.flush)
			s, counted := live.Statistics()
			return s, errors.Join(err, counted)
		},
		func() { _ = live.Close() },
	}, nil
}
