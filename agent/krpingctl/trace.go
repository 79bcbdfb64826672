// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/disk/rawio"
	"krping/agent/trace/biotrace"
	"krping/agent/trace/bioview"
	"krping/agent/trace/replay"
)

// traceFlags are the flags of trace.
type traceFlags struct {
	asJSON, summary bool
	columns         []string
	slow, limit     time.Duration
	record          string
	comm            string
	pid             uint32
	ops             []string
	minSize         sizeFlag
	minLatency      time.Duration
}

func traceCommand(p *program) *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace [DEVICE]",
		Short: "Trace the bios of a block device, or of all, with the time that each spends in each stage",
		Long: `Print one line for each bio when it ends, with the time that it spent in each stage:

  queue    from submission until its request is issued to the driver
  send     until its command is posted in a message (the last one, after a reconnection)
  peer     until the response is accepted
  finish   until the bio ends

krping devices have all of these. Other devices have queue and device, from issue to end;
devices that do not use requests have only the total. Filters run in the kernel. Bios that
the trace has lost are counted per CPU and reported.

Columns:
` + bioview.ColumnHelp(),
		Example: `  krpingctl trace /dev/krping0 --for 10s --summary
  krpingctl trace --comm write_data --op write --columns time,comm,sector,bytes,peer,total
  krpingctl trace /dev/krping0 --slow 10ms
  krpingctl trace /dev/krping0 --record load.trace --for 1m && krpingctl replay load.trace /dev/krping1`,
		Args: arguments("[DEVICE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			device := ""
			if len(args) == 1 {
				var err error
				if device, err = devicePath(args[0]); err != nil {
					return err
				}
			}
			if err := f.check(device); err != nil {
				return err
			}
			return p.trace(cmd.Context(), device, f)
		},
	}
	flags := cmd.Flags()
	jsonFlagSays(cmd, &f.asJSON, "print one JSON object per line")
	flags.BoolVarP(&f.summary, "summary", "s", false, "print percentiles of each stage and a heat map at the end, instead of each bio")
	flags.Var(&timeFlag{&f.slow}, "slow", "show only bios that took this `time` or longer, with their slowest stage; end with a verdict and an exit code")
	flags.StringSliceVar(&f.columns, "columns", nil, "show these `columns`, separated by commas")
	flags.StringVarP(&f.record, "record", "w", "", "record the bios in this `file`, for replay")
	flags.StringVarP(&f.comm, "comm", "c", "", "only bios submitted by processes of this `name`")
	moduleNumberP(flags, &f.pid, "pid", "p", "only bios submitted by this process")
	flags.StringSliceVar(&f.ops, "op", nil, "only these `operations`: "+strings.ToLower(strings.Join(biotrace.OpNames(), ", ")))
	flags.Var(&f.minSize, "min-size", "only bios of this size or larger")
	flags.Var(&timeFlag{&f.minLatency}, "min-latency", "only bios that took this `time` or longer")
	flags.Var(&timeFlag{&f.limit}, "for", "stop after this `time` (default: when interrupted)")
	return cmd
}

func (f *traceFlags) check(device string) error {
	shown := 0
	for _, how := range []bool{f.asJSON, f.summary, f.record != "", len(f.columns) > 0} {
		if how {
			shown++
		}
	}
	switch {
	case shown > 1:
		return usagef("--json, --summary, --record, --columns: give one of them")
	case f.slow > 0 && (f.minLatency > 0 || f.summary || f.record != ""):
		return usagef("--slow: cannot be combined with --min-latency, --summary or --record")
	case f.record != "" && device == "":
		return usagef("--record: name the device: a replay needs its size")
	case f.minSize > 1<<32-1:
		return usagef("--min-size: must be less than 4GiB, as every bio is")
	}
	if err := f.filter().Check(); err != nil {
		return usageError{err}
	}
	return nil
}

// chooseColumns chooses those that fit the device, or all devices if it is nil.
func (f *traceFlags) chooseColumns(device *biotrace.BlockDevice) {
	stages := biotrace.AllStages()
	if device != nil {
		stages = device.Stages()
	}
	f.columns = bioview.DefaultColumns(stages)
	if f.slow > 0 {
		f.columns = append(f.columns, "slowest", "requeues")
	}
}

// filter returns the filter of the flags, without a device.
func (f *traceFlags) filter() biotrace.Filter {
	return biotrace.Filter{
		PID: f.pid, Comm: f.comm, Ops: f.ops, MinBytes: uint32(f.minSize), MinLatency: max(f.minLatency, f.slow),
	}
}

// traceView prints or records the bios of a trace.
type traceView struct {
	add func(*biotrace.Bio) error
	end func(biotrace.Lost) error
	// discard removes what was made before the trace could begin.
	discard func() error
}

func (p *program) trace(ctx context.Context, device string, f traceFlags) error {
	filter := f.filter()
	if device != "" {
		var err error
		if filter.Device, err = biotrace.NewBlockDevice(device); err != nil {
			return err
		}
	}
	if len(f.columns) == 0 {
		f.chooseColumns(filter.Device)
	}
	if f.record != "" {
		filter.Device = filter.Device.WithoutTarget() // a replay makes the copies, too
	}
	out := bufio.NewWriter(p.out)
	view, err := newTraceView(out, filter.Device, device, f)
	if err != nil {
		return err
	}
	tracer, err := biotrace.New(filter)
	if err != nil {
		return errors.Join(err, view.discard())
	}
	defer tracer.Close()
	if f.limit > 0 { // counts from here: to load and attach takes a second
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.limit)
		defer cancel()
	}
	log.Info().Msg("tracing")
	shown := 0
	each := func(b *biotrace.Bio) error { shown++; return view.add(b) }
	shows := newTraceWait(f)
	err = tracer.Run(ctx, each, out.Flush)
	shows.end()
	if err != nil {
		return err
	}
	lost := tracer.Lost()
	if lost.Any() {
		log.Warn().Msgf("the trace is incomplete: %v", lost)
	}
	if err := errors.Join(view.end(lost), out.Flush()); err != nil {
		return err
	}
	pending, err := tracer.InFlight()
	if err != nil {
		return err
	}
	pending = slices.DeleteFunc(pending, func(b biotrace.Bio) bool { return b.Total < cmp.Or(f.slow, stuck) })
	for _, b := range pending {
		log.Warn().Str("device", b.Device).Str("op", b.Op).Uint64("sector", b.Sector).Uint32("bytes", b.Bytes).Str("comm", b.Comm).
			Msgf("bio has not ended after %v", b.Total.Round(time.Microsecond))
	}
	if f.slow == 0 {
		return nil
	}
	verdict, err := slowVerdict{f.slow, tracer.Ended(), shown, len(pending), lost}.judge()
	if err == nil {
		fmt.Fprintln(p.out, verdict)
	}
	return err
}

func newTraceView(out io.Writer, device *biotrace.BlockDevice, path string, f traceFlags) (traceView, error) {
	nothing := func(biotrace.Lost) error { return nil }
	keep := func() error { return nil }
	switch {
	case f.summary:
		var sum bioview.Summary
		return traceView{
			add: func(b *biotrace.Bio) error { sum.Add(b); return nil },
			end: func(biotrace.Lost) error { return sum.Write(out) }, discard: keep,
		}, nil
	case f.asJSON:
		return traceView{func(b *biotrace.Bio) error { return printJSON(out, b) }, nothing, keep}, nil
	case f.record != "":
		return newRecording(path, f.record, device.Start())
	}
	lines, err := bioview.NewLines(out, f.columns)
	if err != nil {
		return traceView{}, usageError{err}
	}
	return traceView{lines.Print, nothing, keep}, lines.Header()
}

// newRecording records the bios of a device that begins at a sector of its disk.
func newRecording(device, path string, start uint64) (traceView, error) {
	d, err := rawio.Open(device, os.O_RDONLY, false)
	if err != nil {
		return traceView{}, err
	}
	defer d.Close()
	if err := checkNewFile(namedFile{"--record", path}); err != nil {
		return traceView{}, err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return traceView{}, fmt.Errorf("--record does not overwrite files: %w", err)
	}
	discard := func() error { return errors.Join(file.Close(), os.Remove(path)) }
	w, err := replay.NewWriter(file, device, d.Size, start, time.Now())
	if err != nil {
		return traceView{}, errors.Join(err, discard())
	}
	end := func(lost biotrace.Lost) error {
		return errors.Join(w.End(time.Now(), lost.Total()), file.Close())
	}
	return traceView{w.Add, end, discard}, nil
}

// newTraceWait shows progress if nothing is printed until the end.
func newTraceWait(f traceFlags) *wait {
	if f.summary || f.record != "" {
		return newTimed("tracing", f.limit)
	}
	return &wait{done: make(chan struct{})}
}

// stuck is the age at which trace reports a bio that has not ended.
const stuck = 5 * time.Second

// slowVerdict is the result of --slow.
type slowVerdict struct {
	limit   time.Duration
	ended   uint64 // bios, slow or not
	slow    int    // of those that ended
	pending int    // have not ended for at least limit
	lost    biotrace.Lost
}

// judge returns an error if any bio was slow, or may have been.
func (v slowVerdict) judge() (string, error) {
	switch {
	case v.slow+v.pending > 0:
		return "", verdictf("fail: %d of %d bios took %v or longer, and %d more have not ended in that time", v.slow, v.ended, v.limit, v.pending)
	case v.lost.Any():
		return "", verdictf("inconclusive: none of the %d bios that were traced took %v or longer, but some were lost: %v", v.ended, v.limit, v.lost)
	}
	return fmt.Sprintf("pass: none of %d bios took %v or longer", v.ended, v.limit), nil
}
