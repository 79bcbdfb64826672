// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/service"
	"krping/agent/service/config"
	"krping/agent/trace/biotrace"
)

func agentCommand(p *program) *cobra.Command {
	var (
		path  string
		check bool
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Keep the sessions of a configuration alive and export metrics, as a service",
		Long: `Keep the sessions of a configuration alive, export metrics of this host for Prometheus, and log
what the module says. SIGHUP reads the configuration again: new sessions are attached, those that it no
longer has are stopped once their devices are closed, changed ones are stopped and attached then, others
are not touched. Its end disturbs no session.`,
		Example: `  krpingctl agent --check
  curl --unix-socket ` + config.DefaultListen + ` http://localhost/metrics`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log.Logger = service.NewLogger(os.Stderr)
			if check {
				c, err := config.Load(path)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.out, "%s: no mistakes; sessions: %d, metrics at %s\n", path, len(c.Sessions), c.Listen)
				return err
			}
			return service.Run(cmd.Context(), service.Options{
				Config: path, RunDir: service.RunDir, FS: p.proc, Log: log.Logger, Debug: cmd.Flags().Changed("debug"),
				Meter: func() (service.Meter, error) { return biotrace.NewMeter() },
			})
		},
	}
	cmd.Flags().StringVar(&path, "config", config.DefaultPath, "the `file` that declares sessions")
	cmd.Flags().BoolVar(&check, "check", false, "look at the configuration only: mistakes are shown with their places, exit code 2")
	return cmd
}
