// SPDX-License-Identifier: Apache-2.0

// Acked writes to a device and logs which writes were acknowledged, in a file that survives this host. It also
// checks a store against such a log.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"krping/test/internal/acklog"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "acked:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	root := &cobra.Command{Use: "acked", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(writeCommand(), checkCommand())
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

func writeCommand() *cobra.Command {
	var (
		load acklog.Load
		path string
		seed uint64
		last time.Duration
	)
	cmd := &cobra.Command{
		Use:   "write --log FILE DEVICE",
		Short: "Write to a device or file until a signal, an error or --for",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			load.Path = args[0]
			ctx := cmd.Context()
			if last > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, last)
				defer cancel()
			}
			return write(ctx, load, path, seed)
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "log", "", "`file` that gets each record before the operation continues; an existing log is continued")
	f.Uint64Var(&seed, "seed", 1, "seed of the data and of the random choices")
	f.IntVar(&load.Workers, "workers", 4, "number of operations in flight")
	f.Int64Var(&load.Align, "align", 0, "`bytes` to align offsets and lengths to (default: the device's block size)")
	f.IntVar(&load.FsyncOne, "fsync-one", 50, "one in `N` operations is an fsync")
	f.IntVar(&load.ReadOne, "read-one", 4, "one in `N` operations reads back and compares")
	f.DurationVar(&load.Limit, "limit", time.Minute, "an operation that takes longer has hung")
	f.DurationVar(&last, "for", 0, "stop after this `time`")
	_ = cmd.MarkFlagRequired("log")
	return cmd
}

func write(ctx context.Context, load acklog.Load, path string, seed uint64) (err error) {
	log, out, err := acklog.OpenLog(path, seed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	run, err := load.Start(log)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-run.Done():
	}
	stats, err := run.Stop()
	fmt.Println(stats)
	return err
}

func checkCommand() *cobra.Command {
	var (
		path  string
		allow acklog.Allow
	)
	cmd := &cobra.Command{
		Use:   "check --log FILE STORE",
		Short: "Check a device or file against the log of the writes to it",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := acklog.CheckFile(args[0], path, allow)
			if err != nil {
				return err
			}
			fmt.Printf("%d writes begun, %d acknowledged, %d blocks checked, %d lost, %d corrupt\n",
				report.Writes, report.Acked, report.Blocks, report.Lost, report.Corrupt)
			return report.Err()
		},
	}
	cmd.Flags().StringVar(&path, "log", "", "the log's `file`")
	cmd.Flags().BoolVar(&allow.Unflushed, "flushed", false, "accept the loss of writes that no fsync covered")
	_ = cmd.MarkFlagRequired("log")
	return cmd
}
