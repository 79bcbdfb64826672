// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/bridge/cli"
)

// newProgress returns a progress bar on stderr, which prints nothing with --quiet.
func newProgress(what string, total int64) *cli.Progress {
	if log.Logger.GetLevel() > zerolog.InfoLevel {
		return nil
	}
	return cli.NewProgress(what, total)
}

// patience is how long a command may take before it says what it does.
const patience = 2 * time.Second

// wait is a line on stderr about something that lasts, until end.
type wait struct {
	done  chan struct{}
	shown sync.WaitGroup
}

// newWait tells what the command waits for, once that has lasted a while.
func newWait(what string) *wait { return newTimed(what, 0) }

// newTimed is newWait for what lasts for a time that is known; it shows a bar. 0 is not known.
func newTimed(what string, total time.Duration) *wait {
	w := &wait{done: make(chan struct{})}
	bar := newProgress(what, int64(total))
	if bar == nil || total != 0 && total < patience {
		return w
	}
	w.shown.Go(func() {
		start := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-w.done:
				cli.RemoveLine()
				return
			case <-tick.C:
			}
			switch waited := time.Since(start); {
			case total != 0:
				bar.Set(min(int64(waited), int64(total)))
			case waited >= patience:
				cli.ShowLine(fmt.Sprintf("%s, %v", what, waited.Round(time.Second)))
			}
		}
	})
	return w
}

// end removes the line. It does nothing the second time.
func (w *wait) end() {
	select {
	case <-w.done:
	default:
		close(w.done)
	}
	w.shown.Wait()
}

// showWaits shows what commands without progress of their own do, once it has lasted a while.
func showWaits(root *cobra.Command, p *program) {
	doing := map[string]string{
		"nvme connect": "connecting", "nvme connect-all": "connecting", "nvme discover": "asking the target", "nvme disconnect": "disconnecting",
		"nvme target add": "serving", "nvme target remove": "removing", "nvme target restore": "restoring", "link add": "adding the device",
	}
	for _, cmd := range commandsBelow(root) {
		what, run := doing[commandName(cmd)], cmd.RunE
		if what == "" {
			continue
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			wait := newWait(what)
			defer wait.end()
			p.out = cli.AfterProgress(p.out)
			return run(cmd, args)
		}
	}
}

// hasColors reports whether colors may be printed to f. See https://no-color.org.
func hasColors(f *os.File) bool { return cli.CanOverwrite(f) && os.Getenv("NO_COLOR") == "" }
