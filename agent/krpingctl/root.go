// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

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
	log.Logger = zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: "15:04:05.000", NoColor: !isTerminal(os.Stderr)}).
		Level(zerolog.InfoLevel).With().Timestamp().Logger()
	root := newRoot(p)
	root.SetOut(out)
	checkCompletion(root, args)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if ctx.Err() != nil && err != nil && !errors.As(err, new(verdictError)) {
		return interruptedError{err}
	}
	return err
}

// newRoot returns the program's command, with all others below it.
func newRoot(p *program) *cobra.Command {
	var verbose bool
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
			if verbose {
				log.Logger = log.Level(zerolog.DebugLevel)
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
		writeCommand(p), verifyCommand(p), traceCommand(p), replayCommand(p), linkCommand(p), sweepCommand(p), doctorCommand(p),
		topCommand(p), agentCommand(p), shutdownCommand(p), captureCommand(p), nvmeCommand(p), versionCommand(p), optionsTopic(),
	)
	return root
}
