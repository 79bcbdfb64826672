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

// captureFlags are where packets come from, and what is shown of them.
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
		Short: "Capture RoCE and NVMe/TCP packets, or read a file of them, and show what each I/O costs",
		Long: `Capture packets of RoCEv2 (UDP port 4791) and of NVMe/TCP, or read a pcapng or pcap file, and
show a line a packet: transport headers, and what krping's protocols and NVMe over fabrics say.

--ladder draws each I/O between host and target, --svg FILE draws them as a picture, --count
counts opcodes, and packets an I/O. --write FILE keeps the packets, data and all, as pcapng for
Wireshark; alone, nothing else is shown.

Capturing needs CAP_NET_RAW (root has it), reading a file needs nothing. The filter runs in the
kernel; packets that it had to drop are counted and shown. A NIC that does RDMA in hardware
keeps its RoCE packets from the kernel: capture those at a mirror port of the switch. Soft-RoCE's
pass, but for those between two addresses of one host.

What a connection speaks is known from its set-up. If that was not captured, it is recognised by
its messages, or --protocol says it.`,
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
	flags.StringVar(&f.read, "read", "", "`file` to read instead: pcapng or pcap, also packed by gzip")
	flags.StringVar(&f.write, "write", "", "`file` to keep the packets in, as pcapng")
	flags.BoolVar(&f.ladder, "ladder", false, "draw each I/O as a sequence diagram")
	flags.StringVar(&f.svg, "svg", "", "`file` to draw the I/Os in, as SVG")
	flags.IntVar(&f.examples, "examples", 0, "draw only the first `n` I/Os of each kind and size (default: all, of --svg the first one)")
	flags.BoolVar(&f.count, "count", false, "count opcodes, and packets an I/O")
	flags.BoolVar(&f.asJSON, "json", false, "one JSON object a packet; with --count one for all")
	flags.IntVar(&f.limit, "limit", 0, "end after this `number` of packets")
	flags.DurationVar(&f.duration, "duration", 0, "end after this `time` (default: when interrupted)")
	flags.UintSliceVar(&f.ports, "port", portNumbers(dissect.DefaultTCPPorts), "TCP ports of NVMe/TCP, separated by commas")
	flags.StringVar(&f.assume, "protocol", "", "what connections speak whose set-up was not captured: "+protocolNames())
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
		return usagef("--read and --duration: a file ends by itself; --limit ends sooner")
	case f.read != "" && f.read == f.write:
		return usagef("--read and --write %s: cannot be the same file", f.read)
	case given("limit") && f.limit < 1:
		return usagef("--limit %d: must be 1 or more", f.limit)
	case given("duration") && f.duration <= 0:
		return usagef("--duration %v: must be longer than 0", f.duration)
	case given("examples") && f.examples < 1:
		return usagef("--examples %d: must be 1 or more", f.examples)
	case given("examples") && !f.ladder && f.svg == "":
		return usagef("--examples: goes with --ladder or --svg")
	case f.asJSON && f.ladder:
		return usagef("--json and --ladder: give one of them")
	case f.assume != "" && !slices.Contains(dissect.Assumable(), dissect.Protocol(f.assume)):
		return usagef("--protocol %s: must be one of %s", f.assume, protocolNames())
	case len(f.ports) > capture.MaxTCPPorts:
		return usagef("--port: %d ports, at most %d", len(f.ports), capture.MaxTCPPorts)
	}
	for _, port := range f.ports {
		if port < 1 || port > 65535 {
			return usagef("--port %d: must be 1 to 65535", port)
		}
	}
	return nil
}

func (f *captureFlags) tcpPorts() []uint16 {
	ports := make([]uint16, len(f.ports))
	for i, port := range f.ports {
		ports[i] = uint16(port)
	}
	return ports
}

// view is what becomes of the packets.
type view struct {
	flags     captureFlags
	out       *bufio.Writer
	dissector *dissect.Dissector // nil if nothing is shown
	lines     bool
	encoder   *json.Encoder
	counts    *ladder.Counts
	drawn     map[ladder.Kind]int
	pictures  []*dissect.IO
	writer    *capture.Writer // nil if nothing is kept
	seen      int
	err       error // of drawing an I/O
}

func newView(out io.Writer, f captureFlags) (*view, error) {
	v := &view{flags: f, out: bufio.NewWriter(out), counts: ladder.NewCounts(), drawn: map[ladder.Kind]int{}}
	v.encoder = json.NewEncoder(v.out)
	v.encoder.SetEscapeHTML(false)
	shown := f.ladder || f.count || f.svg != ""
	v.lines = !shown && (f.write == "" || f.asJSON)
	if shown || v.lines {
		v.dissector = dissect.New(dissect.Options{TCPPorts: f.tcpPorts(), Assume: dissect.Protocol(f.assume), OnIO: v.addIO})
	}
	if f.write != "" {
		netdev := f.netdev
		if f.read != "" {
			netdev = "" // a file does not say where it comes from
		}
		var err error
		if v.writer, err = capture.Create(f.write, netdev); err != nil {
			return nil, err
		}
	}
	if v.lines && !f.asJSON {
		return v, packetview.NewLines(v.out).Header()
	}
	return v, nil
}

// addIO counts and draws an I/O that is over.
func (v *view) addIO(o *dissect.IO) {
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

// add takes a packet; it returns false when there were enough.
func (v *view) add(data []byte, info gopacket.CaptureInfo) (more bool, err error) {
	v.seen++
	if v.writer != nil {
		if err := v.writer.Write(data, info); err != nil {
			return false, err
		}
	}
	if v.dissector != nil {
		// A message, and so its packets' data, is looked at again when it is whole.
		if err := v.show(v.dissector.Add(dissect.Frame{Time: info.Timestamp, Data: slices.Clone(data), Length: info.Length})); err != nil {
			return false, err
		}
	}
	return v.flags.limit == 0 || v.seen < v.flags.limit, v.err
}

func (v *view) show(p *dissect.Packet) error {
	switch {
	case p == nil:
		return nil
	case v.lines && v.flags.asJSON:
		return v.encoder.Encode(packetview.NewRecord(p))
	case v.lines:
		return packetview.NewLines(v.out).Print(p)
	}
	v.counts.AddPacket(p)
	return nil
}

// flush shows what there is while nothing comes.
func (v *view) flush() error { return v.out.Flush() }

// countReport is what --count --json prints.
type countReport struct {
	Opcodes []ladder.Opcode    `json:"opcodes"`
	IOs     []ladder.Cost      `json:"ios"`
	Totals  dissect.Totals     `json:"totals"`
	Kernel  capture.Statistics `json:"kernel"`
}

// end shows what needs all packets, and closes the file.
func (v *view) end(s capture.Statistics) error {
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

func (v *view) conclude(s capture.Statistics) error {
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

func (v *view) draw() error {
	file, err := os.Create(v.flags.svg)
	if err != nil {
		return err
	}
	slices.SortFunc(v.pictures, func(a, b *dissect.IO) int { return a.ID - b.ID })
	return errors.Join(ladder.WriteSVG(file, v.pictures), file.Close())
}

// report logs how many packets there were, and what was wrong.
func (v *view) report(s capture.Statistics) {
	log.Info().Msgf("%s, %d dropped by the kernel", count(v.seen, "packet"), s.Dropped)
	if s.Dropped > 0 {
		log.Warn().Msgf("the capture is incomplete: the kernel dropped %d of %d packets", s.Dropped, s.Packets)
	}
	if v.dissector == nil {
		return
	}
	t := v.dissector.Totals()
	for _, found := range []struct {
		n    int
		what string
	}{
		{t.Malformed, "%s malformed"}, {t.WrongICRC, "%s with a wrong ICRC"}, {t.Unchecked, "%s not captured whole: the ICRC is not checked"},
		{t.Lost, "%s missing, by the sequence numbers: lost, or not captured"}, {t.Again, "%s sent again"},
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
	v, err := newView(p.out, f)
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
	run   func(context.Context, *view) (capture.Statistics, error)
	close func()
}

func openSource(f captureFlags) (packetSource, error) {
	if f.read != "" {
		file, err := os.Open(f.read)
		if err != nil {
			return packetSource{}, err
		}
		return packetSource{
			func(ctx context.Context, v *view) (capture.Statistics, error) {
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
		return packetSource{}, fmt.Errorf("%w: it needs CAP_NET_RAW", err)
	}
	if err != nil {
		return packetSource{}, err
	}
	log.Info().Msgf("capturing from %s", f.netdev)
	return packetSource{
		func(ctx context.Context, v *view) (capture.Statistics, error) {
			err := live.Run(ctx, v.add, v.flush)
			s, counted := live.Statistics()
			return s, errors.Join(err, counted)
		},
		func() { _ = live.Close() },
	}, nil
}
