// SPDX-License-Identifier: Apache-2.0

// Package cli is what the command lines of krpingctl and krping-bridge have in common: errors of usage, and
// hints.
package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ExitUsage is the exit code for a UsageError.
const ExitUsage = 2

// UsageError is a mistake in the command line.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usagef returns a UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Usage makes an error a UsageError, unless it is nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// MissingValues returns an error if the value of a flag is left out, so that the next flag would be taken for
// it: --ping --store file:x.
func MissingValues(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) { // a command line that is not complete
		return nil
	}
	cmd, rest, err := root.Find(args)
	if err != nil { // the word that is no command may be the value of such a flag
		cmd, rest = root, args
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(nil); err != nil { // adds the flags of the commands above
		return err
	}
	for i := 0; i < len(rest) && rest[i] != "--"; i++ {
		flag := find(cmd, rest[i])
		if flag == nil || flag.NoOptDefVal != "" || strings.Contains(rest[i], "=") {
			continue
		}
		if i++; i < len(rest) && find(cmd, rest[i]) != nil {
			return Usagef("--%s needs a value: %s is the next flag", flag.Name, rest[i])
		}
	}
	return nil
}

// find returns the flag that an argument names, or nil.
func find(cmd *cobra.Command, arg string) *pflag.Flag {
	if name, long := strings.CutPrefix(arg, "--"); long {
		name, _, _ = strings.Cut(name, "=")
		if name == "" {
			return nil
		}
		return cmd.Flags().Lookup(name)
	}
	if len(arg) == 2 && arg[0] == '-' {
		return cmd.Flags().ShorthandLookup(arg[1:])
	}
	return nil
}

// UnknownCommand returns the error for an unknown command, with those that were probably meant.
func UnknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	if names := nearest(cmd, name); len(names) > 0 {
		hint = ": did you mean " + strings.Join(names, " or ") + "?"
	}
	return Usagef("unknown command %q for %q%s", name, cmd.CommandPath(), hint)
}

// CheckEmpty refuses flags that were given an empty value, as by a shell variable that is not set: a server
// without --allow or --key-file lets more clients in than was meant.
func CheckEmpty(flags *pflag.FlagSet) error {
	var err error
	flags.Visit(func(f *pflag.Flag) {
		list, isList := f.Value.(pflag.SliceValue)
		if isList && len(list.GetSlice()) == 0 || f.Value.Type() == "string" && f.Value.String() == "" {
			err = Usagef("--%s has an empty value: give it one, or leave it out", f.Name)
		}
	})
	return err
}

// UnknownFlag adds to an error of the parser the flag that was probably meant, if there is one.
func UnknownFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || strings.HasPrefix(err.Error(), "unknown shorthand") {
		return UsageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if best := Suggest(unknown.GetSpecifiedName(), names); best != "" {
		return Usagef("%w: did you mean --%s?", err, best)
	}
	return UsageError{err}
}

// nearest returns the commands below cmd that differ from a misspelled word by one letter or, if there is none
// and the word is not short, by two.
func nearest(cmd *cobra.Command, word string) []string {
	var names []string
	for cmd.SuggestionsMinimumDistance = 1; len(names) == 0 && cmd.SuggestionsMinimumDistance <= 1+min(len(word)/5, 1); cmd.SuggestionsMinimumDistance++ {
		names = cmd.SuggestionsFor(word)
	}
	return names
}

// Suggest returns the only name that cobra takes for a misspelled word, or "". For a word of less than three
// letters it would be a guess.
func Suggest(word string, names []string) string {
	if len(word) < 3 {
		return ""
	}
	c := &cobra.Command{}
	for _, name := range names {
		c.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	found := nearest(c, word)
	found = slices.DeleteFunc(found, func(name string) bool { return len(name) < 3 })
	if len(found) != 1 {
		return ""
	}
	return found[0]
}
