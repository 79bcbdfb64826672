// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"krping/bridge/cli"
)

// arguments checks the number of positional arguments. A name in brackets is optional.
func arguments(names ...string) cobra.PositionalArgs {
	var needed []string
	for _, name := range names {
		if !strings.HasPrefix(name, "[") {
			needed = append(needed, name)
		}
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return unexpected(cmd, args[len(names)])
		case len(args) >= len(needed):
			return nil
		case len(needed) == 1:
			return usagef("%s needs the argument %s", commandName(cmd), needed[0])
		}
		return usagef("%s needs the arguments %s", commandName(cmd), strings.Join(needed, " and "))
	}
}

// commandName returns the command's path without the program's name.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// unexpected returns the error for an argument too many. It may be the value of a flag whose value
// must follow "=".
func unexpected(cmd *cobra.Command, arg string) error {
	hint := ""
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.Type() != "bool" && f.Value.Set(arg) == nil {
			hint = ": did you mean --" + f.Name + "=" + arg + "?"
		}
	})
	return usagef("unexpected argument %q%s", arg, hint)
}

// group makes a command with subcommands. Without one it prints its help.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return cli.UnknownCommand(cmd, args[0])
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.DisableFlagsInUseLine = true
	cmd.AddCommand(commands...)
	return cmd
}

// helpCommand replaces cobra's help command, which does not fail for unknown commands.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return cli.UnknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag() // so that the help lists --help
			return about.Help()
		},
	}
}

// checkCompletion makes cobra's completion command refuse unknown shells and arguments.
func checkCompletion(root *cobra.Command, args []string) {
	root.InitDefaultCompletionCmd(args...)
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		group(c)
		for _, shell := range c.Commands() {
			shell.Args = arguments()
		}
	}
}
