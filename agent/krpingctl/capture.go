// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"krping/agent/packets/capture"
	"krping/agent/packets/dissect"
)

// captureFlags are the flags of capture.
type captureFlags struct {
	netdev, read, write string
	ladder, count       bool
	sizes               bool // of --count
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
		Long: `Capture packets of RoCE and NVMe/TCP, or read a pcapng or pcap file, and print one line per
packet: the transport headers, and the contents of krping's protocols and NVMe over Fabrics. Times
are in UTC.

--ladder draws each I/O as a sequence diagram of host and target, --svg FILE draws it as a picture,
and --count counts packets by opcode and per I/O. I/Os of many sizes share rows, by ranges, unless
--sizes is given; --json has each size. --write FILE saves the packets, including their data, as
pcapng for Wireshark; nothing is printed unless another output is requested, too.

Capturing needs CAP_NET_RAW, which root has; reading a file needs no privileges. The kernel filters
the packets, and the number that it had to drop is shown at the end. A NIC that does RDMA in
hardware does not pass its RoCE packets to the kernel: capture those at a mirror port of the
switch. Soft-RoCE's packets are captured, except those between two addresses of the same host.

Packets are also found below VLAN tags and in ERSPAN, GRE, VXLAN and Geneve, by which switches
mirror them, and in files of tcpdump -i any. Of packets that were not captured whole (a snap length
of 128 bytes keeps the headers), what is there is shown, and what is not does not count as lost.

The protocol of a connection is known from its set-up. If that was not captured, the protocol is
recognised by its messages, or given with --protocol.`,
		Example: `  krpingctl capture --interface eth0
  krpingctl capture --interface eth0 --write io.pcapng --duration 10s
  krpingctl capture --read io.pcapng --ladder --examples 1
  krpingctl capture --read io.pcapng --count
  tcpdump -i eth0 -U -w - udp port 4791 | krpingctl capture --read -`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return p.capture(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.netdev, "interface", "i", "", "network `interface` to capture from (default: the one with an RDMA device)")
	flags.StringVarP(&f.read, "read", "r", "", "read this `file` instead: pcapng or pcap, plain or gzip; - is standard input")
	flags.StringVarP(&f.write, "write", "w", "", "save the packets in this `file`, as pcapng; - is standard output")
	flags.BoolVar(&f.ladder, "ladder", false, "draw each I/O as a sequence diagram")
	flags.StringVar(&f.svg, "svg", "", "draw I/Os in this `file`, as SVG")
	flags.IntVar(&f.examples, "examples", 0, "draw only the first `n` I/Os of each kind and size (default: --ladder all, --svg 1)")
	flags.BoolVar(&f.count, "count", false, "count packets by opcode and per I/O")
	flags.BoolVar(&f.sizes, "sizes", false, "with --count, a row for each size of I/O, however many there are")
	jsonFlagSays(cmd, &f.asJSON, "print one JSON object per packet; with --count one for all")
	flags.IntVarP(&f.limit, "limit", "c", 0, "stop after this `number` of packets")
	timeVar(flags, &f.duration, "duration", "d", "stop after this `time` (default: when interrupted)")
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
	case f.write == "-" && (f.count || f.ladder || f.asJSON):
		return usagef("--write -: standard output has the packets, and cannot have what --count, --ladder or --json print")
	case f.sizes && !f.count:
		return usagef("--sizes: needs --count")
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
	outputs := []namedFile{{"--svg", f.svg}}
	if f.write != "-" { // checkOutputs knows standard output
		outputs = append(outputs, namedFile{"--write", f.write})
	}
	for _, out := range outputs {
		if err := checkNewFile(out); err != nil {
			return err
		}
	}
	return checkOutputs([]namedFile{{"--read", f.read}}, outputs...)
}

func (f *captureFlags) tcpPorts() []uint16 {
	ports := make([]uint16, len(f.ports))
	for i, port := range f.ports {
		ports[i] = uint16(port)
	}
	return ports
}
