// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/bridge/cli"
	"krping/bridge/display"
	"krping/proc"
)

// program is the state shared by all commands.
type program struct {
	out  io.Writer // for results
	proc proc.FS
}

const exitHelp = `Exit codes:
  0    done
  1    failed, or doctor found a problem
  2    wrong command line or configuration, or more than the device supports
  3    data differs
  4    a module is not loaded, or no RDMA device has or reaches the address
  5    the peer refused, is unreachable, was lost, or violated the protocol
  130  interrupted`

func run(ctx context.Context, args []string, out io.Writer) error {
	p := &program{out: out}
	log.Logger = newLogger(cli.AfterProgress(os.Stderr), hasColors(os.Stderr)).Level(zerolog.InfoLevel)
	root := newRoot(p)
	root.SetOut(out)
	checkCompletion(root, args)
	if slices.Equal(args, []string{"-V"}) { // as of ip and rdma
		args = []string{"--version"}
	}
	root.SetArgs(args)
	err := cli.MissingValues(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if ctx.Err() != nil && err != nil && !errors.As(err, new(verdictError)) {
		return interruptedError{err}
	}
	return err
}

// newLogger returns a logger whose messages are safe to print: they may quote what others have sent.
func newLogger(out io.Writer, colour bool) zerolog.Logger {
	zerolog.TimeFieldFormat = time.RFC3339Nano // else to the second
	return zerolog.New(zerolog.ConsoleWriter{
		Out: out, TimeFormat: "15:04:05.000", NoColor: !colour,
		FormatPrepare: func(event map[string]any) error {
			if message, ok := event[zerolog.MessageFieldName].(string); ok {
				event[zerolog.MessageFieldName] = display.Lines(message)
			}
			return nil
		},
	}).With().Timestamp().Logger()
}

// newRoot returns the program's command, with all others below it.
func newRoot(p *program) *cobra.Command {
	var verbose, quiet bool
	root := &cobra.Command{
		Use:   "krpingctl",
		Short: "Block I/O over RDMA that proves itself",
		Long: `Block I/O over RDMA that proves itself: serve and attach disks, ping and measure, trace every bio,
capture packets, and verify the data at both ends. "krpingctl doctor" finds set-up problems.

` + exitHelp,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			switch {
			case verbose && quiet:
				return usagef("--debug and --quiet: give one of them")
			case verbose:
				log.Logger = log.Level(zerolog.DebugLevel)
			case quiet:
				log.Logger = log.Level(zerolog.WarnLevel)
			}
			if p.proc != (proc.FS{}) { // a test's
				return nil
			}
			var err error
			p.proc, err = proc.NewFS(proc.DefaultMount)
			return err
		},
	}
	root.PersistentFlags().BoolVar(&verbose, "debug", false, "log debug messages")
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(explainFlag)
	root.SetHelpCommand(helpCommand())
	group(root,
		clientCommand(p), serverCommand(p), stopCommand(p), statCommand(p), dmesgCommand(p),
		writeCommand(p), verifyCommand(p), traceCommand(p), replayCommand(p), linkCommand(p), sweepCommand(p), experimentCommand(p), doctorCommand(p),
		topCommand(p), agentCommand(p), shutdownCommand(p), captureCommand(p), nvmeCommand(p), versionCommand(p), optionsTopic(),
	)
	addQuiet(root, &quiet)
	completeValues(root, p)
	showWaits(root, p)
	cli.UseFlagGroups(root, groupPing, groupVerbs, groupServe, groupBlock, groupTap)
	return root
}

// addQuiet adds --quiet to each command that does something, with the letter q where it is free: nvme-cli
// uses it for --hostnqn.
func addQuiet(cmd *cobra.Command, quiet *bool) {
	for _, c := range cmd.Commands() {
		addQuiet(c, quiet)
	}
	if cmd.HasSubCommands() || !cmd.Runnable() {
		return
	}
	letter := "q"
	if cmd.Flags().ShorthandLookup(letter) != nil {
		letter = ""
	}
	cmd.Flags().BoolVarP(quiet, "quiet", letter, false, "print no progress and no notes, only results, warnings and errors")
}
