// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/biotrace"
)

func traceCommand(p *program) *cobra.Command {
	var (
		asJSON, summary bool
		limit           time.Duration
	)
	cmd := &cobra.Command{
		Use:   "trace [DEVICE]",
		Short: "Show every bio of a block device, or of all: who, what, how long",
		Long: `Show every bio that ends, one line each: time of the submit, process, device, operation,
sector (of 512 bytes), bytes, the time until its request was issued, the time until it
ended. Events that were lost are counted and shown.`,
		Example: "  krpingctl trace /dev/krping0 --for 10s --summary",
		Args:    usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var dev uint32
			if len(args) == 1 {
				var err error
				if dev, err = biotrace.Device(args[0]); err != nil {
					return err
				}
			}
			ctx := cmd.Context()
			if limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			return p.trace(ctx, dev, asJSON, summary)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	cmd.Flags().BoolVar(&summary, "summary", false, "print percentiles and a histogram at the end, not each bio")
	cmd.Flags().DurationVar(&limit, "for", 0, "end after this time (default: when interrupted)")
	return cmd
}

func (p *program) trace(ctx context.Context, dev uint32, asJSON, summary bool) error {
	tracer, err := biotrace.New(dev)
	if err != nil {
		return err
	}
	defer tracer.Close()
	log.Info().Msg("tracing")
	var sum biotrace.Summary
	show := printBio(p.out)
	switch {
	case summary:
		show = func(b biotrace.Bio) error { sum.Add(b); return nil }
	case asJSON:
		encoder := json.NewEncoder(p.out)
		show = func(b biotrace.Bio) error { return encoder.Encode(b) }
	default:
		fmt.Fprintf(p.out, "%-15s %7s %-15s %-10s %-12s %-12s %10s %8s %9s %9s\n", "TIME", "PID", "COMM", "DEVICE", "OP", "FLAGS", "SECTOR", "BYTES", "QUEUE ms", "TOTAL ms")
	}
	if err := tracer.Run(ctx, show); err != nil {
		return err
	}
	if summary {
		if err := sum.Write(p.out); err != nil {
			return err
		}
	}
	lost, err := tracer.Lost()
	if err != nil {
		return err
	}
	if lost != (biotrace.Lost{}) {
		log.Warn().Uint64("events", lost.Events).Uint64("bios", lost.Bios).Msg("the trace is incomplete: events were lost")
	}
	return nil
}

func printBio(out io.Writer) func(biotrace.Bio) error {
	return func(b biotrace.Bio) error {
		failed := ""
		if b.Status != 0 {
			failed = fmt.Sprintf(" FAILED (status %d)", b.Status)
		}
		_, err := fmt.Fprintf(out, "%-15s %7d %-15s %-10s %-12s %-12s %10d %8d %9.3f %9.3f%s\n", b.Time.Format("15:04:05.000000"), b.PID, b.Comm,
			b.Device, b.Op, b.Flags, b.Sector, b.Bytes, milliseconds(b.Queue), milliseconds(b.Total), failed)
		return err
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
