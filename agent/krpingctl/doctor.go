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
	o := doctor.Options{Version: version}
	var (
		addr, peer string
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use:   "doctor [--addr ADDR] [--peer ADDR]",
		Short: "Find problems with this host's set-up, and how to fix them",
		Long: `Check kernel modules, RDMA devices, GIDs, addresses, MTU, network namespaces, ports, limits, BTF
and the firewall. With --peer, also check the route, neighbour and MTU to another host, and ping it
once. Each finding that is not ok has a cause and a fix, usually a command to run.

Doctor changes nothing on this host. Its ping counts as a client of the peer's server: a
"krpingctl server", which serves one client, ends after it. With --addr or --peer, a Soft-RoCE
device also connects to itself at port 1, which must be refused.

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
	cmd.Flags().StringVar(&addr, "addr", "", "this host's `address` to serve or connect from")
	cmd.Flags().StringVar(&peer, "peer", "", "`address` of the other host")
	portVar(cmd.Flags(), &o.Port, "port", "", 9999, "port of the server, on the peer or on this host")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func writeReport(out io.Writer, r doctor.Report, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false) // commands contain &&
		return encoder.Encode(r)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(out, "%-8s %s: %s\n", f.Level, f.Check, f.Found)
		if f.Cause != "" {
			fmt.Fprintf(out, "%8s   cause: %s\n", "", f.Cause)
		}
		if f.Fix != "" {
			fmt.Fprintf(out, "%8s   fix: %s\n", "", f.Fix)
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
