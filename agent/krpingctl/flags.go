// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"krping/proc"
)

// wantError says which values a flag takes. It is printed after the flag and its refused value.
type wantError string

func (e wantError) Error() string { return string(e) }

// numberFlag is an integer in a range. If the range begins at 1, 0 means that the flag is not
// given; so Set refuses an explicit 0.
type numberFlag[T uint8 | uint16 | uint32 | uint64 | int] struct {
	to       *T
	min, max uint64
}

func (n *numberFlag[T]) String() string {
	if n.to == nil {
		return "0"
	}
	return fmt.Sprint(*n.to)
}

func (n *numberFlag[T]) Type() string { return "number" }

func (n *numberFlag[T]) Set(text string) error {
	v, err := strconv.ParseUint(text, 0, 64)
	if err != nil || v < n.min || v > n.max {
		return wantError(fmt.Sprintf("must be %d to %d", n.min, n.max))
	}
	*n.to = T(v)
	return nil
}

// portVar adds a flag for a port.
func portVar(flags *pflag.FlagSet, to *uint16, name, letter string, value uint16, usage string) {
	*to = value
	flags.VarP(&numberFlag[uint16]{to, 1, 65535}, name, letter, usage)
}

// moduleOption returns the module's option with the name of a flag.
func moduleOption(flag string) proc.Option {
	name := strings.ReplaceAll(flag, "-", "_")
	return proc.Options[slices.IndexFunc(proc.Options, func(o proc.Option) bool { return o.Name == name })]
}

// moduleNumber adds a flag with the range of the module's option of that name.
func moduleNumber[T uint8 | uint16 | uint32](flags *pflag.FlagSet, to *T, name, usage string) {
	o := moduleOption(name)
	flags.Var(&numberFlag[T]{to, uint64(o.Min), uint64(o.Max)}, name, usage)
}

// blockSizeFlag is 512 or 4096.
type blockSizeFlag struct{ numberFlag[uint32] }

func (b *blockSizeFlag) Set(text string) error {
	if text != "512" && text != "4096" {
		return wantError("must be 512 or 4096")
	}
	return b.numberFlag.Set(text)
}

// timeFlag is a duration longer than 0.
type timeFlag struct{ to *time.Duration }

// String returns "" for the zero value, so that the help shows no default.
func (t *timeFlag) String() string {
	if t.to == nil || *t.to == 0 {
		return ""
	}
	return t.to.String()
}

func (t *timeFlag) Type() string { return "duration" }

func (t *timeFlag) Set(text string) error {
	d, err := parseTime(text)
	if err == nil && d <= 0 {
		err = wantError("must be longer than 0")
	}
	if err == nil {
		*t.to = d
	}
	return err
}

// secondsFlag is a duration in whole seconds, which the module takes.
type secondsFlag struct {
	timeFlag
	min, max uint32
}

func (s *secondsFlag) Set(text string) error {
	d, err := parseTime(text)
	if err == nil && (d%time.Second != 0 || d < time.Duration(s.min)*time.Second || d > time.Duration(s.max)*time.Second) {
		err = wantError(fmt.Sprintf("must be whole seconds, %d to %d", s.min, s.max))
	}
	if err == nil {
		*s.to = d
	}
	return err
}

func moduleTime(flags *pflag.FlagSet, to *time.Duration, name, usage string) {
	o := moduleOption(name)
	flags.Var(&secondsFlag{timeFlag{to}, o.Min, o.Max}, name, usage)
}

const wantTime = wantError("must be a duration such as 10s or 5m")

func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, wantTime
	}
	return d, nil
}

// wants says which values a flag takes.
func wants(flag *pflag.Flag, cause error) string {
	var want wantError
	if errors.As(cause, &want) {
		return string(want)
	}
	switch flag.Value.Type() {
	case "duration":
		return string(wantTime)
	case "uint64":
		return "must be a whole number, 0 or more"
	case "int":
		return "must be a whole number"
	case "float64":
		return "must be a number"
	case "intSlice", "uintSlice":
		return "must be whole numbers, separated by commas"
	case "bool":
		return "must be true or false"
	}
	return cause.Error()
}

// explainFlag explains an error in a flag: which values the flag takes, or which flag was probably
// meant.
func explainFlag(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return unknownCommand(cmd, args[0]) // the flag may be of the misspelled command
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		return usagef("--%s %s: %s", flag.Name, orQuotes(invalid.GetValue()), wants(flag, invalid.Unwrap()))
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if best := nearest(unknown.GetSpecifiedName(), names, 3); best != "" {
		return usagef("%w: did you mean --%s?", err, best)
	}
	return usageError{err}
}

// orQuotes quotes a value that would be invisible.
func orQuotes(value string) string {
	if strings.TrimSpace(value) == "" {
		return strconv.Quote(value)
	}
	return value
}
