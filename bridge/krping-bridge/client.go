// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"krping/bridge/cli"
	"krping/bridge/input"
	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/verbstest"
	"krping/bridge/wire"
)

// clientOptions holds the flags of krping-bridge client.
type clientOptions struct {
	addr, source                              string
	verb, qp, size                            string
	bw, lat, srq, duplex, validate, poll      bool
	count, rate                               uint32
	duration, timeout                         time.Duration
	qps, txdepth, rxdepth, signal, mtu, reads uint16
	inline                                    string
	tos                                       int
	json                                      bool
}

// clientCommand returns the command, and its options once it has parsed its flags.
func clientCommand() (*cobra.Command, *clientOptions) {
	var o clientOptions
	cmd := &cobra.Command{
		Use:   "client --addr ADDR --verb VERB --bw|--lat",
		Short: "Measure SEND, RDMA WRITE and READ and atomic operations against a server",
		Long: `Measure an operation against krping-bridge --ping, or a server of the module with the option verbs,
from user space. With --validate, each message is filled, and checked where it arrives. The options
are those of krpingctl client.

--bw keeps --txdepth messages in flight on each of --qps queue pairs. --lat has one message in
flight: send, write and write_imm are answered by a message of the server, read and the atomic
operations by its device.
Queue pairs of the types uc and ud lose messages; what was lost, repeated or reordered is counted.`,
		Example: `  krping-bridge client --addr 192.168.77.1 --verb send --bw --duration 10s
  krping-bridge client --addr 192.168.77.1 --verb write_imm --qp uc --size 64KiB --validate --bw --count 10000
  krping-bridge client --addr 192.168.77.1 --verb read --lat --count 10000 --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.addr, "addr", "a", "", "`address` of the server, or host name, like 192.168.77.1 or 192.168.77.1:9999")
	f.StringVar(&o.source, "source", "", "connect from this `address` of this host")
	f.StringVar(&o.verb, "verb", "", "operation: "+strings.Join(wire.VerbNames(), ", "))
	f.StringVar(&o.qp, "qp", "rc", "type of the queue pairs: rc, uc or ud")
	f.BoolVar(&o.bw, "bw", false, "measure the bandwidth: many messages in flight")
	f.BoolVar(&o.lat, "lat", false, "measure the latency: one message in flight")
	f.StringVarP(&o.size, "size", "S", "", "bytes of a message, like 64 or 4k (default 64; atomics: 8)")
	f.Uint32VarP(&o.count, "count", "C", 0, "messages of each queue pair (default: until --duration or interrupted)")
	f.DurationVarP(&o.duration, "duration", "d", 0, "send for this time, in whole seconds, like 10s")
	f.Uint16Var(&o.qps, "qps", 1, "data queue pairs")
	f.Uint16Var(&o.txdepth, "txdepth", 0, "messages in flight on each queue pair (default 64)")
	f.Uint16Var(&o.rxdepth, "rxdepth", 0, "send, write_imm: receives posted on each queue pair, with --srq of all (default 128)")
	f.BoolVar(&o.srq, "srq", false, "send, write_imm: one receive queue for all queue pairs")
	f.BoolVar(&o.duplex, "duplex", false, "the server sends, too")
	f.BoolVarP(&o.validate, "validate", "V", false, "fill each message, and check it where it arrives")
	f.BoolVar(&o.poll, "poll", false, "busy-poll for completions instead of sleeping")
	f.StringVar(&o.inline, "inline", "", "send messages of up to so many `bytes` inline")
	f.Uint16Var(&o.signal, "signal", 0, "signal one message in so many (default a quarter of --txdepth, at most 64)")
	f.Uint16Var(&o.mtu, "mtu", 0, "uc, ud: `bytes` of a packet: 256, 512, 1024, 2048 or 4096 (default: what the path allows)")
	f.Uint16Var(&o.reads, "reads", 0, "read, atomics: outstanding on each queue pair, 1 to 255 (default 16)")
	f.Uint32Var(&o.rate, "rate", 0, "messages a second of all queue pairs (default: no limit)")
	f.IntVar(&o.tos, "tos", -1, "IP type of service of the packets")
	f.DurationVarP(&o.timeout, "timeout", "t", pingTimeout, "limit of connection set-up and of each step")
	f.BoolVarP(&o.json, "json", "j", false, "print the result as one JSON object")
	for name, values := range map[string][]string{"verb": wire.VerbNames(), "qp": {"rc", "uc", "ud"}, "mtu": {"256", "512", "1024", "2048", "4096"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	return cmd, &o
}

// hello returns the test that the options describe, but for reads. It refuses what would have no effect.
func (o clientOptions) hello(given func(name string) bool) (wire.VerbsHello, error) {
	var h wire.VerbsHello
	var ok bool
	if h.Verb, ok = wire.ParseVerb(o.verb); !ok {
		return h, cli.Usagef("--verb %q: must be one of %s", o.verb, strings.Join(wire.VerbNames(), ", "))
	}
	if h.QPType, ok = wire.ParseQPType(o.qp); !ok {
		return h, cli.Usagef("--qp %q: must be rc, uc or ud", o.qp)
	}
	if o.bw == o.lat {
		return h, cli.Usagef("exactly one of --bw and --lat is needed")
	}
	h.Measure = wire.Bandwidth
	if o.lat {
		h.Measure = wire.Latency
	}
	if err := o.checkUnused(h, given); err != nil {
		return h, err
	}
	size, err := sizeOr(o.size, map[bool]uint64{true: 8, false: 64}[h.Verb.IsAtomic()])
	if err != nil || size < 1 || size > wire.VerbsSizeMax {
		return h, cli.Usagef("--size %s: must be 1 byte to 1 GiB, like 4k", o.size)
	}
	inline, err := sizeOr(o.inline, 0)
	if err != nil || o.inline != "" && inline < size {
		return h, cli.Usagef("--inline %s: must be at least the size, %d", o.inline, size)
	}
	if o.duration%time.Second != 0 || o.duration < 0 || o.duration > wire.VerbsSecondsMax*time.Second {
		return h, cli.Usagef("--duration %s: must be whole seconds, like 10s, at most %d", o.duration, wire.VerbsSecondsMax)
	}
	h.Size, h.QPs, h.Group, h.Inline = uint32(size), o.qps, uint16(rand.Uint32()), o.inline != ""
	h.Duplex, h.Validate, h.SRQ = o.duplex, o.validate, o.srq
	h.MTU, h.Count, h.Duration, h.Rate = o.mtu, o.count, uint32(o.duration/time.Second), o.rate
	if o.reads > math.MaxUint8 {
		return h, cli.Usagef("--reads %d: must be 1 to 255", o.reads)
	}
	for name, value := range map[string]uint32{
		"qps": uint32(o.qps), "txdepth": uint32(o.txdepth), "rxdepth": uint32(o.rxdepth), "signal": uint32(o.signal),
		"reads": uint32(o.reads), "mtu": uint32(o.mtu), "rate": o.rate,
	} {
		if given(name) && value == 0 {
			return h, cli.Usagef("--%s 0: must be at least 1", name)
		}
	}
	o.setDepths(&h)
	return h, nil
}

func sizeOr(text string, otherwise uint64) (uint64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := input.Size(text)
	return uint64(n), err
}

// checkUnused refuses options that the test does not use.
func (o clientOptions) checkUnused(h wire.VerbsHello, given func(name string) bool) error {
	kind := "--verb " + h.Verb.String()
	for _, unused := range []struct {
		names []string
		when  bool
		what  string
	}{
		{[]string{"qps", "txdepth", "rxdepth", "srq", "signal", "reads", "rate", "duplex"}, o.lat, "--lat: one message is in flight"},
		{[]string{"rxdepth", "srq"}, !h.Verb.Receives(), kind},
		{[]string{"inline"}, h.Verb.Fetches(), kind},
		{[]string{"reads"}, !h.Verb.Fetches(), kind},
		{[]string{"size"}, h.Verb.IsAtomic(), kind + ", which is of 8 bytes"},
		{[]string{"mtu"}, h.QPType == wire.RC, "--qp rc: librdmacm takes what the path allows"},
		{[]string{"duration"}, o.count > 0, "--count: give one of them"},
	} {
		for _, name := range unused.names {
			if unused.when && given(name) {
				return cli.Usagef("--%s does not go with %s", name, unused.what)
			}
		}
	}
	return nil
}

// setDepths sets the defaults of the depths, which are the module's.
func (o clientOptions) setDepths(h *wire.VerbsHello) {
	h.TxDepth, h.Signal = o.txdepth, o.signal
	if h.TxDepth == 0 {
		h.TxDepth = 64
	}
	if h.Measure == wire.Latency {
		h.TxDepth = 1
	}
	if h.Signal == 0 {
		h.Signal = min(max(h.TxDepth/4, 1), 64)
	}
	if h.Verb.Receives() {
		h.RxDepth = o.rxdepth
		if h.RxDepth == 0 {
			h.RxDepth = 128
			if h.SRQ {
				h.RxDepth = max(128, h.QPs)
			}
		}
	}
	if h.Verb.Fetches() {
		h.Reads = uint8(o.reads)
		if h.Reads == 0 {
			h.Reads = defaultReads
		}
	}
}

const defaultReads = 16 // what most devices have, Soft-RoCE 128

func (o clientOptions) run(ctx context.Context, cmd *cobra.Command) error {
	h, err := o.hello(func(name string) bool { return cmd.Flags().Changed(name) })
	if err != nil {
		return err
	}
	if o.addr == "" {
		return cli.Usagef("--addr ADDR is needed: the address of the server")
	}
	if err := h.Check(); err != nil {
		var reject *wire.Reject
		errors.As(err, &reject)
		return cli.Usagef("%s", reject.Detail)
	}
	d := &dialer{}
	if d.memory, err = memoryLimit(""); err != nil {
		return err
	}
	if d.route.Addr, err = listenAddr(ctx, "--addr", o.addr); err != nil {
		return err
	}
	if o.source != "" {
		if d.route.Source, err = netip.ParseAddr(o.source); err != nil {
			return cli.Usagef("--source %s: must be an IP address of this host", o.source)
		}
	}
	if o.tos > math.MaxUint8 || o.tos < -1 {
		return cli.Usagef("--tos %d: must be 0 to 255", o.tos)
	}
	if o.tos >= 0 {
		tos := uint8(o.tos)
		d.route.TOS = &tos
	}
	client := verbstest.Client{Dialer: d, Timeout: o.timeout, Poll: o.poll}
	result, err := client.Run(ctx, h)
	if result.Sent == 0 && err != nil {
		return explainClient(err)
	}
	if o.json {
		err = errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(reportOf(result, d.route.Addr, err)), err)
	} else {
		writeReport(cmd.OutOrStdout(), reportOf(result, d.route.Addr, err))
	}
	return explainClient(err)
}

// explainClient says why a server refuses, and what would be right.
func explainClient(err error) error {
	var reject *wire.Reject
	if !errors.As(err, &reject) {
		return err
	}
	switch reject.Reason {
	case wire.RejectTest:
		return errors.New("the server does not run verbs tests: it needs the option verbs, or a newer krping-bridge --ping")
	case wire.RejectTestSize:
		return fmt.Errorf("--size is too large: the most is %d bytes", reject.Value)
	case wire.RejectBusy:
		return fmt.Errorf("the server has its most connections, %d", reject.Value)
	case wire.RejectResources:
		return errors.New("the server is out of memory or RDMA resources")
	case wire.RejectNotAllowed:
		return errors.New("the server does not allow this host's address")
	case wire.RejectInvalid:
		return errors.New("the server does not know such a test: it is of another version")
	case wire.RejectDevice:
		if reject.Detail != "" { // of this side
			return errors.New(reject.Detail)
		}
		return fmt.Errorf("the server's RDMA device %s", reject.Lacks())
	}
	return err
}

// dialer implements verbstest.Dialer.
type dialer struct {
	route  verbs.Route
	memory *verbs.Budget
}

func (d *dialer) Dial(ctx context.Context, private []byte, receives, size int) (verbstest.Conn, error) {
	conn, _, err := d.route.Dial(ctx, private, verbs.Config{Receives: receives, MaxMessage: size, Buffers: 1, MaxData: size, Budget: d.memory})
	if err != nil {
		return nil, d.refusal(err)
	}
	return conn, nil
}

func (d *dialer) DialQueue(ctx context.Context, q transport.Queues, index int, private []byte, responder, initiator int) error {
	return d.refusal(d.route.DialQueue(ctx, q, index, private, responder, initiator))
}

// refusal returns the server's reject, if err has one.
func (d *dialer) refusal(err error) error {
	var rejected *verbs.RejectedError
	if errors.As(err, &rejected) {
		if reject, decodeErr := wire.DecodeReject(rejected.Private); decodeErr == nil {
			return reject
		}
		return fmt.Errorf("nothing listens at %s, or it rejects the client", d.route.Addr)
	}
	return err
}

func (d *dialer) Release(conn verbstest.Conn) { conn.(*verbs.Conn).Release() }

// clientReport is the JSON of a result. Fields are only added.
type clientReport struct {
	Version       int                `json:"version"`
	Verb          string             `json:"verb"`
	QP            string             `json:"qp"`
	Measure       string             `json:"measure"`
	Peer          string             `json:"peer"`
	Size          uint32             `json:"size"` // bytes of a message
	QPs           uint16             `json:"qps"`
	TxDepth       uint16             `json:"txdepth"`
	RxDepth       uint16             `json:"rxdepth,omitempty"`
	Validate      bool               `json:"validate"`
	Duplex        bool               `json:"duplex"`
	SRQ           bool               `json:"srq"`
	Operations    uint64             `json:"operations"`
	ElapsedNs     int64              `json:"elapsed_ns"`
	GbitPerSecond float64            `json:"gbit_per_second"` // of data in one direction
	OpsPerSecond  float64            `json:"ops_per_second"`
	PeakPerSecond float64            `json:"peak_ops_per_second,omitempty"` // of the best 100 ms
	Posts         uint64             `json:"posts"`                         // send work requests
	Completions   uint64             `json:"completions"`
	Arrived       *verbstest.Arrived `json:"arrived,omitempty"`  // of what this side sent
	Received      *verbstest.Arrived `json:"received,omitempty"` // of what the server sent
	Latency       *verbstest.Latency `json:"latency,omitempty"`
	Error         string             `json:"error,omitempty"`
}

func reportOf(r verbstest.Result, peer netip.AddrPort, err error) clientReport {
	h := r.Test
	report := clientReport{
		Version: 1, Verb: h.Verb.String(), QP: h.QPType.String(), Measure: h.Measure.String(), Peer: peer.String(), Size: h.Size, QPs: h.QPs,
		TxDepth: h.TxDepth, RxDepth: h.RxDepth, Validate: h.Validate, Duplex: h.Duplex, SRQ: h.SRQ,
		Operations: r.Sent, ElapsedNs: r.Took.Nanoseconds(), OpsPerSecond: r.Rate(), GbitPerSecond: r.Rate() * float64(h.Size) * 8 / 1e9,
		PeakPerSecond: r.Peak, Posts: r.Posts, Completions: r.Completions, Arrived: r.Arrived, Received: r.Received, Latency: r.Latency(),
	}
	if err != nil {
		report.Error = err.Error()
	}
	return report
}

// writeReport writes a report as text.
func writeReport(w io.Writer, r clientReport) {
	took := time.Duration(r.ElapsedNs).Round(time.Microsecond)
	fmt.Fprintf(w, "%s %s over %d %s queue pair(s), %d bytes: %s messages in %v\n", r.Verb, r.Measure, r.QPs, r.QP, r.Size, humanize.Comma(int64(r.Operations)), took)
	if l := r.Latency; l != nil {
		us := func(ns float64) string { return fmt.Sprintf("%.2f", ns/1000) }
		fmt.Fprintf(w, "latency in us: min %s, avg %s, 50%% %s, 99%% %s, 99.9%% %s, max %s", us(float64(l.Min)), us(l.Avg), us(float64(l.P50)), us(float64(l.P99)), us(float64(l.P999)), us(float64(l.Max)))
		if l.Half > 0 {
			fmt.Fprintf(w, "; half of a round trip: avg %s", us(l.Half))
		}
		fmt.Fprintln(w)
	} else {
		fmt.Fprintf(w, "%.3f Gbit/s, %s messages/s", r.GbitPerSecond, humanize.Comma(int64(r.OpsPerSecond)))
		if r.PeakPerSecond > 0 {
			fmt.Fprintf(w, ", at best %s", humanize.Comma(int64(r.PeakPerSecond)))
		}
		fmt.Fprintln(w)
	}
	writeArrived(w, "at the server", r.Arrived)
	writeArrived(w, "here", r.Received)
}

func writeArrived(w io.Writer, where string, a *verbstest.Arrived) {
	if a != nil && *a != (verbstest.Arrived{}) {
		fmt.Fprintf(w, "%s: %d received, %d lost, %d repeated, %d reordered, %d damaged\n", where, a.Received, a.Lost, a.Repeated, a.Reordered, a.Damaged)
	}
}
