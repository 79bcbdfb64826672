// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"krping/agent/doctor"
	"krping/bridge/display"
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
		Long: `Check kernel modules, RDMA devices, GIDs, addresses, MTU, flow control, PCIe links, network
namespaces, ports, limits, BTF, the firewall, and what will not be there after the next boot. With
--peer, also check the route, neighbour and MTU to another host, and ping it once. Each finding that
is not ok has a cause and a fix, usually a command to run.

Doctor changes nothing on this host. Its ping counts as a client of the peer's server: a
"krpingctl server", which serves one client, ends after it. With --addr or --peer, a Soft-RoCE
device also connects to itself at port 1, which must be refused.

The exit code is 1 if there is a problem, 0 if there are only warnings and notes.`,
		Example: `  krpingctl doctor
  krpingctl doctor --addr 192.168.77.2 --peer 192.168.77.1 --port 9998`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Addr, err = parseAddr(cmd, "addr", addr); err != nil {
				return err
			}
			if peer != "" {
				if o.Peer, o.Port, err = parseEndpoint(cmd, "peer", peer, "port", o.Port); err != nil {
					return err
				}
			}
			wait := newWait("examining this host")
			r := doctor.Examine(cmd.Context(), p.proc, o)
			wait.end()
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
	cmd.Flags().StringVarP(&addr, "addr", "a", "", "this host's `address` to serve or connect from")
	cmd.Flags().StringVarP(&peer, "peer", "P", "", "`address` of the other host, or its name; perhaps with a port")
	portVar(cmd.Flags(), &o.Port, "port", "p", 9999, "port of the server, on the peer or on this host")
	jsonFlagSays(cmd, &asJSON, "print one JSON object")
	return cmd
}

func writeReport(out io.Writer, r doctor.Report, asJSON bool) error {
	if asJSON {
		return printJSON(out, r)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(out, "%-8s %s: %s\n", f.Level, f.Check, display.Lines(f.Found))
		if f.Cause != "" {
			fmt.Fprintf(out, "%8s   cause: %s\n", "", display.Lines(f.Cause))
		}
		if f.Fix != "" {
			fmt.Fprintf(out, "%8s   fix: %s\n", "", display.Lines(f.Fix))
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
