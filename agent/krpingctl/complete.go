// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"krping/agent/disk/pattern"
	"krping/agent/host/rdmalink"
	"krping/agent/trace/biotrace"
	"krping/agent/trace/bioview"
	"krping/proc"
)

// lister returns the values that are possible now. Errors are of no use on a command line that is not
// complete.
type lister func() []string

// completeValues makes the shell complete the values of flags and arguments.
func completeValues(root *cobra.Command, p *program) {
	sessions := func(served bool) lister {
		return func() []string {
			names, _ := p.volumeNames(served)
			return names
		}
	}
	all := func() []string { return append(sessions(false)(), sessions(true)()...) }
	one := func(list lister) cobra.CompletionFunc {
		return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return list(), cobra.ShellCompDirectiveNoFileComp
		}
	}
	none := one(func() []string { return nil })
	argument := map[string]cobra.CompletionFunc{
		"stop": one(all), "trace": one(krpingDisks), "write": one(krpingDisks), "verify": one(krpingDisks), "link del": one(rdmaDevices), "link keep": one(netdevs), "experiment": one(experimentNames),
		"replay": func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveDefault // a recording
			}
			return krpingDisks(), cobra.ShellCompDirectiveNoFileComp
		},
		"nvme target remove": one(targetNQNs),
	}
	ops := func() []string { return lower(biotrace.OpNames()) }
	flags := map[string]lister{
		"interface": netdevs, "netdev": netdevs, "source": netdevs, "host-iface": netdevs, "columns": bioview.ColumnNames, "op": ops, "pattern": pattern.Names,
		"backing": func() []string { return append(blockDevices(), "ram:") }, "mem-mode": list("dma", "reg"), "mode": list("remote", "tap"),
		"test": list("bw", "rlat", "ping"), "type": list("rxe", "siw"), "transport": list("rdma", "tcp"), "block-size": list("512", "4096"),
		"protocol": func() []string { return strings.Split(protocolNames(), ", ") }, "forget": sessions(false), "device": blockDevices,
		"qp": list("rc", "uc", "ud"), "verb": list(proc.Send, proc.Write, proc.WriteImm, proc.Read, proc.FetchAdd, proc.CmpSwap),
	}
	lists := []string{"columns"} // whose values are separated by commas
	for _, cmd := range commandsBelow(root) {
		if f := argument[commandName(cmd)]; f != nil {
			cmd.ValidArgsFunction = f
		} else if cmd.Runnable() && cmd.ValidArgsFunction == nil && !strings.Contains(cmd.Use, "FILE") {
			cmd.ValidArgsFunction = none
		}
		for name, list := range flags {
			if cmd.Flags().Lookup(name) == nil {
				continue
			}
			_ = cmd.RegisterFlagCompletionFunc(name, func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
				if !slices.Contains(lists, name) {
					return list(), cobra.ShellCompDirectiveNoFileComp
				}
				return afterComma(typed, list()), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
			}) // fails only for a flag that does not exist
		}
	}
}

// afterComma returns the values with what was typed up to the last comma before them.
func afterComma(typed string, values []string) []string {
	before := typed[:strings.LastIndex(typed, ",")+1]
	for i := range values {
		values[i] = before + values[i]
	}
	return values
}

func commandsBelow(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		all = append(all, commandsBelow(c)...)
	}
	return all
}

func list(values ...string) lister { return func() []string { return slices.Clone(values) } }

func lower(values []string) []string {
	values = slices.Clone(values)
	for i := range values {
		values[i] = strings.ToLower(values[i])
	}
	return values
}

func entries(dir string) []string {
	found, _ := os.ReadDir(dir) // a host without the directory has none
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

func netdevs() []string {
	devices, _ := net.Interfaces()
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}

// krpingDisks returns the paths of the disks that this program is for.
func krpingDisks() []string {
	return slices.DeleteFunc(blockDevices(), func(path string) bool { return !ourDisks.MatchString(filepath.Base(path)) })
}

func blockDevices() []string {
	names := entries("/sys/class/block")
	for i := range names {
		names[i] = "/dev/" + strings.ReplaceAll(names[i], "!", "/")
	}
	return names
}

func rdmaDevices() []string {
	links, _ := rdmalink.List()
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return names
}

func targetNQNs() []string {
	config, _ := nvmeTarget().Read()
	var names []string
	for _, t := range config.Targets() {
		names = append(names, t.NQN)
	}
	return names
}
