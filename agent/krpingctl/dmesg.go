// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/bridge/display"
	"krping/proc"
)

func dmesgCommand(p *program) *cobra.Command {
	var follow, asJSON bool
	var lines int
	cmd := &cobra.Command{
		Use:   "dmesg",
		Short: "Show the module's kernel messages",
		Args:  arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			kmsg, err := p.proc.OpenKmsg(false)
			if err != nil {
				return err
			}
			defer kmsg.Close()
			next := kmsg.Next
			if follow {
				next = kmsg.Wait
			}
			if cmd.Flags().Changed("lines") {
				next = lastMessages(lines, kmsg.Next, next)
			}
			err = printMessages(cmd.Context(), p.out, next, asJSON)
			if kmsg.Lost > 0 {
				log.Warn().Int("times", kmsg.Lost).Msg("the kernel overwrote messages before they were read")
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for new messages, until interrupted")
	cmd.Flags().VarP(&numberFlag[int]{&lines, 0, math.MaxInt32}, "lines", "n", "begin with the last `number` of messages (default: all)")
	cmd.Flags().Lookup("lines").DefValue = ""
	jsonFlagSays(cmd, &asJSON, "print one JSON object per line")
	return cmd
}

func printMessages(ctx context.Context, out io.Writer, next func(context.Context) (proc.Message, error), asJSON bool) error {
	for {
		m, err := next(ctx)
		if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(out, m)
		} else {
			_, err = fmt.Fprintf(out, "%12.6f %-5s %-16s %-22s %s\n", m.Time.Seconds(), levelName(m.Level), display.Text(subject(m)), display.Text(m.Peer), display.Text(m.Text))
		}
		if err != nil {
			return err
		}
	}
}

// lastMessages returns a function that returns the last n messages that read has before its end, and then what
// after returns.
func lastMessages(n int, read, after func(context.Context) (proc.Message, error)) func(context.Context) (proc.Message, error) {
	var last []proc.Message
	ended := false
	return func(ctx context.Context) (proc.Message, error) {
		for !ended {
			m, err := read(ctx)
			switch {
			case errors.Is(err, io.EOF):
				ended = true
			case err != nil:
				return m, err
			default:
				last = append(last[max(0, len(last)+1-max(n, 1)):], m)
			}
		}
		if len(last) == 0 || n == 0 {
			return after(ctx)
		}
		m := last[0]
		last = last[1:]
		return m, nil
	}
}

func subject(m proc.Message) string {
	if m.PID != 0 {
		return fmt.Sprintf("%s:%d", m.Subject, m.PID)
	}
	return m.Subject
}

func levelName(level int) string {
	switch {
	case level <= 3:
		return "error"
	case level == 4:
		return "warn"
	}
	return "info"
}
