// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/host/rdmalink"
)

func linkCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{Use: "link", Short: "List, add, delete and keep RDMA devices"}
	return group(cmd, linkListCommand(p), linkAddCommand(), linkDelCommand(p), linkKeepCommand(p))
}

func linkListCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"show", "ls"}, Short: "List the RDMA devices", Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			links, err := rdmalink.List()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, linkList{links})
			}
			w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tNETDEV\tSTATE\tNODE GUID")
			for _, l := range links {
				for _, p := range l.Ports {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.PortName(p), emptyAs(p.Netdev, "-"), emptyAs(p.State, "unknown"), l.NodeGUID)
				}
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func linkAddCommand() *cobra.Command {
	var kind, netdev string
	cmd := &cobra.Command{
		Use: "add NAME --netdev DEVICE", Short: "Add a software RDMA device to a network device",
		Example: "  krpingctl link add rxe0 --netdev eth0",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return likeRDMA(cmd, args[1:])
			}
			return arguments("NAME")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if netdev == "" {
				return usagef("--netdev is needed: the network device to add %s to", args[0])
			}
			if kind != "rxe" && kind != "siw" {
				return usagef("--type %s: must be rxe or siw", kind)
			}
			if err := rdmalink.Add(cmd.Context(), args[0], kind, netdev); err != nil {
				return err
			}
			if why, fix := rdmalink.Idle(netdev); why != "" {
				log.Warn().Str("hint", fix).Msgf("%s serves nothing yet: %s", args[0], why)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&kind, "type", "rxe", "`type` of the device: rxe (Soft-RoCE) or siw (Soft-iWARP)")
	cmd.Flags().StringVar(&netdev, "netdev", "", "network `device`")
	return cmd
}

// likeRDMA takes "type TYPE netdev DEVICE", as rdma link add does, for --type and --netdev.
func likeRDMA(cmd *cobra.Command, words []string) error {
	for i := 0; i < len(words); i += 2 {
		if words[i] != "type" && words[i] != "netdev" || i+1 == len(words) {
			return unexpected(cmd, words[i])
		}
		if err := cmd.Flags().Set(words[i], words[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func linkDelCommand(p *program) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "del NAME", Aliases: []string{"delete"}, Short: "Delete a software RDMA device", Args: arguments("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if !force {
				if err := p.mayDeleteLink(args[0]); err != nil {
					return err
				}
			}
			return rdmalink.Del(args[0])
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "delete it even if a disk that it connects is in use: its I/O then waits, and fails")
	return cmd
}
