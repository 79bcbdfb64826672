// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"krping/agent/doctor"
)

func doctorCommand(p *program) *cobra.Command {
	var (
		addr, peer string
		o          doctor.Options
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "doctor [--addr ADDR] [--peer ADDR]",
		Short: "Look for what is wrong with the set-up, and say what mends it",
		Long: `Look at modules, RDMA devices, addresses, MTU, network namespaces, ports, limits, the
firewall and, with --peer, at the way to another host, which is pinged once. Each finding that
is not ok comes with its cause and the command that mends it. Changes nothing; but a server at
the peer that answers one client, as krpingctl server, has then answered it.
The exit code is 1 if there is a problem, 0 if there are only warnings and notes.`,
		Example: `  krpingctl doctor
  krpingctl doctor --addr 192.168.77.2 --peer 192.168.77.1 --port 9998`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Addr, err = parseAddr("addr", addr); err != nil {
				return err
			}
			if o.Peer, err = parseAddr("peer", peer); err != nil {
				return err
			}
			r := doctor.Examine(cmd.Context(), p.proc, o)
			if err := writeReport(p.out, r, asJSON); err != nil {
				return err
			}
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if r.Problems > 0 {
				return fmt.Errorf("the set-up has %s", count(r.Problems, "problem"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&addr, "addr", "", "own `address`, to serve or to connect from")
	cmd.Flags().StringVar(&peer, "peer", "", "`address` of the other host")
	portVar(cmd.Flags(), &o.Port, "port", "", 9999, "port of the server, at the peer or here")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as one JSON object")
	return cmd
}

func writeReport(out io.Writer, r doctor.Report, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false) // commands have && in them
		return encoder.Encode(r)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(out, "%-8s %s: %s\n", f.Level, f.Check, f.Found)
		if f.Cause != "" {
			fmt.Fprintf(out, "%8s   because: %s\n", "", f.Cause)
		}
		if f.Fix != "" {
			fmt.Fprintf(out, "%8s   mend it: %s\n", "", f.Fix)
		}
	}
	_, err := fmt.Fprintf(out, "%s, %s, %s\n", count(len(r.Findings), "finding"), count(r.Problems, "problem"), count(r.Warnings, "warning"))
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
