// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/service"
	"krping/agent/service/shutdown"
)

func shutdownCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shutdown",
		Short: "Prepare sessions for a shutdown of this host, as its units do",
		Long: `Prepare sessions for a shutdown of this host. The units krping-shutdown.service and
krping-detach.service run these commands: "begin" before file systems are unmounted, "end" after.
Unless systemd shuts the host down, both do nothing without --now.`,
	}
	return group(cmd, shutdownBeginCommand(p), shutdownEndCommand(p))
}

func shutdownBeginCommand(p *program) *cobra.Command {
	wait := 10 * time.Second
	cmd := &cobra.Command{
		Use:   "begin",
		Short: "Let I/O to targets that are away fail soon",
		Long: `Let I/O to targets that are away fail soon, so that unmounting does not wait for them for minutes.
I/O to a target that is there, or is back in time, succeeds.`,
		Args: arguments(),
	}
	cmd.Flags().Var(&secondsFlag{timeFlag{&wait}, 1, 86400}, "wait", "how long I/O waits for a target that is away")
	return whenShuttingDown(cmd, p, func(_ context.Context, h shutdown.Host) error { return h.Begin(wait) })
}

func shutdownEndCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end",
		Short: "Detach all disks that are not in use, and say what was not written",
		Long: `Detach all disks that are not in use. If requests have failed since "begin", say whose, here and in
the log of the agent at the next boot.`,
		Args: arguments(),
	}
	return whenShuttingDown(cmd, p, func(ctx context.Context, h shutdown.Host) error { return h.End(ctx) })
}

// whenShuttingDown makes the command run f, but only if the host is shutting down or --now is given.
func whenShuttingDown(cmd *cobra.Command, p *program, f func(context.Context, shutdown.Host) error) *cobra.Command {
	var now bool
	cmd.Flags().BoolVar(&now, "now", false, "even if the host is not shutting down")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log.Logger = service.NewLogger(os.Stderr)
		if !now && !shutdown.UnderWay(cmd.Context()) {
			log.Info().Msg("the host is not shutting down: nothing done (--now does it nevertheless)")
			return nil
		}
		return f(cmd.Context(), shutdown.Host{
			Module: p.proc, Sys: "/sys", Begun: shutdown.DefaultBegun, Lost: shutdown.DefaultLost, Log: log.Logger,
		})
	}
	return cmd
}
