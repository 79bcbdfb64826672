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

	"krping/bridge/cli"
	"krping/bridge/input"
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
	moduleNumberP(flags, to, name, "", usage)
}

// moduleNumberP is moduleNumber with a letter.
func moduleNumberP[T uint8 | uint16 | uint32](flags *pflag.FlagSet, to *T, name, letter, usage string) {
	o := moduleOption(name)
	flags.VarP(&numberFlag[T]{to, uint64(o.Min), uint64(o.Max)}, name, letter, usage)
}

// blockSizeFlag is 512 or 4096.
type blockSizeFlag struct{ numberFlag[uint32] }

func (b *blockSizeFlag) Set(text string) error {
	n, err := input.Size(text)
	if err != nil || n != 512 && n != 4096 {
		return wantError("must be 512 or 4096")
	}
	*b.to = uint32(n)
	return nil
}

// timeVar adds a flag for a duration longer than 0.
func timeVar(flags *pflag.FlagSet, to *time.Duration, name, letter, usage string) {
	flags.VarP(&timeFlag{to}, name, letter, usage)
}

// timeFlag is a duration longer than 0: 10s, 5m, or a number of seconds.
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

func moduleTime(flags *pflag.FlagSet, to *time.Duration, name, letter, usage string) {
	o := moduleOption(name)
	flags.VarP(&secondsFlag{timeFlag{to}, o.Min, o.Max}, name, letter, usage)
}

// heartbeatFlag is the number of seconds of a duration.
type heartbeatFlag struct{ numberFlag[uint32] }

func (h *heartbeatFlag) Set(text string) error {
	var d time.Duration
	seconds := secondsFlag{timeFlag{&d}, uint32(h.min), uint32(h.max)}
	if err := seconds.Set(text); err != nil {
		return err
	}
	*h.to = uint32(d / time.Second)
	return nil
}

func parseTime(text string) (time.Duration, error) {
	d, err := input.Duration(text)
	if err != nil {
		return 0, wantError(err.Error())
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
		return input.ErrDuration.Error()
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
		return cli.UnknownCommand(cmd, args[0]) // the flag may be of the misspelled command
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		return usagef("--%s %s: %s", flag.Name, orQuotes(invalid.GetValue()), wants(flag, invalid.Unwrap()))
	}
	return cli.UnknownFlag(cmd, err)
}

// orQuotes quotes a value that would be invisible.
func orQuotes(value string) string {
	if strings.TrimSpace(value) == "" {
		return strconv.Quote(value)
	}
	return value
}
