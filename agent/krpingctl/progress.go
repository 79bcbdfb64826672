// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// progress is a progress bar on stderr. It is nil, and prints nothing, unless stderr is a terminal that can
// overwrite a line, and with --quiet.
type progress struct {
	what  string
	total int64
	shown time.Time
}

func newProgress(what string, total int64) *progress {
	if !canOverwrite(os.Stderr) || log.Logger.GetLevel() > zerolog.InfoLevel {
		return nil
	}
	return &progress{what: what, total: total}
}

const barWidth = 40

func (p *progress) set(done int64) {
	if p == nil || time.Since(p.shown) < 100*time.Millisecond && done < p.total {
		return
	}
	p.shown = time.Now()
	lineShown.Store(true)
	filled := int(done * barWidth / max(p.total, 1))
	fmt.Fprintf(os.Stderr, "\r%s [%s%s] %3d%%", p.what, strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done*100/max(p.total, 1))
}

func (p *progress) end() {
	if p != nil {
		lineShown.Store(false)
		fmt.Fprintln(os.Stderr)
	}
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
				removeLine()
				return
			case <-tick.C:
			}
			switch waited := time.Since(start); {
			case total != 0:
				bar.set(min(int64(waited), int64(total)))
			case waited >= patience:
				lineShown.Store(true)
				fmt.Fprintf(os.Stderr, "\r%s, %v", what, waited.Round(time.Second))
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

// lineShown tells that the terminal's last line is one of progress.
var lineShown atomic.Bool

func removeLine() {
	if lineShown.Swap(false) {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}

// afterProgress is a writer to a terminal that removes the line of progress before.
type afterProgress struct{ io.Writer }

func (a afterProgress) Write(text []byte) (int, error) {
	removeLine()
	return a.Writer.Write(text)
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
			p.out = afterProgress{p.out}
			return run(cmd, args)
		}
	}
}

// fraction returns a function that sets the bar to a fraction, 0 to 1; nil without a bar.
func (p *progress) fraction() func(float64) {
	if p == nil {
		return nil
	}
	return func(done float64) { p.set(int64(done * float64(p.total))) }
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// canOverwrite reports whether f is a terminal that can overwrite a line. TERM=dumb is one that cannot.
func canOverwrite(f *os.File) bool { return isTerminal(f) && os.Getenv("TERM") != "dumb" }

// hasColors reports whether colors may be printed to f. See https://no-color.org.
func hasColors(f *os.File) bool { return canOverwrite(f) && os.Getenv("NO_COLOR") == "" }
