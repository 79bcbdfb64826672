// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/service"
	"krping/agent/service/config"
	"krping/agent/service/shutdown"
	"krping/agent/service/volumes"
	"krping/agent/trace/biotrace"
)

func agentCommand(p *program) *cobra.Command {
	var (
		path   string
		check  bool
		forget string
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent: maintain the configured sessions and export metrics",
		Long: `Run the agent, a service. It attaches the block sessions that its configuration declares and keeps
them attached, exports this host's metrics for Prometheus, serves a web page, and logs the module's
kernel messages.

On SIGHUP it reads the configuration again: it attaches new sessions, stops those no longer declared
once their devices are closed, does both with changed ones, and leaves the others alone. All sessions
stay attached when the agent ends.

It remembers the UUID of each session's volume in ` + volumes.DefaultPath + `, and refuses
another volume under the same name, also after a reboot. With --forget, the next volume is accepted.`,
		Example: `  krpingctl agent --check
  curl --unix-socket ` + config.DefaultListen + ` http://localhost/metrics`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if forget != "" {
				known, err := volumes.New(volumes.DefaultPath, log.Logger).Forget(forget)
				if err == nil && !known {
					err = fmt.Errorf("no volume of session %s is known: nothing to forget", forget)
				}
				return err
			}
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
				Version: version, Config: path, RunDir: service.RunDir, Known: volumes.DefaultPath, Lost: shutdown.DefaultLost, FS: p.proc, Log: log.Logger, Debug: cmd.Flags().Changed("debug"),
				Meter: func() (service.Meter, error) { return biotrace.NewMeter() },
			})
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath, "configuration `file`")
	cmd.Flags().BoolVar(&check, "check", false, "only check the configuration: print each mistake with its position, exit code 2 if any")
	cmd.Flags().StringVar(&forget, "forget", "", "only forget which volume this `session` had, so that another one may be attached; also while the agent runs")
	return cmd
}
