// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

// Progress is a progress bar on stderr. Nil prints nothing.
type Progress struct {
	what  string
	total int64
	shown time.Time
}

// NewProgress returns the bar of what is done when total is reached; nil unless stderr is a terminal that can
// overwrite a line.
func NewProgress(what string, total int64) *Progress {
	if !CanOverwrite(os.Stderr) {
		return nil
	}
	return &Progress{what: what, total: total}
}

const barWidth = 40

// Set shows how much of the total is done.
func (p *Progress) Set(done int64) {
	if p == nil || time.Since(p.shown) < 100*time.Millisecond && done < p.total {
		return
	}
	p.shown = time.Now()
	filled := int(done * barWidth / max(p.total, 1))
	ShowLine(fmt.Sprintf("%s [%s%s] %3d%%", p.what, strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done*100/max(p.total, 1)))
}

// Fraction returns a function that sets the bar to a fraction, 0 to 1; nil without a bar.
func (p *Progress) Fraction() func(float64) {
	if p == nil {
		return nil
	}
	return func(done float64) { p.Set(int64(done * float64(p.total))) }
}

// End leaves the bar as it is.
func (p *Progress) End() {
	if p != nil && lineShown.Swap(false) {
		fmt.Fprintln(os.Stderr)
	}
}

// lineShown tells that the terminal's last line is one of progress.
var lineShown atomic.Bool

// ShowLine replaces the terminal's line of progress on stderr.
func ShowLine(text string) {
	lineShown.Store(true)
	fmt.Fprint(os.Stderr, "\r"+text)
}

// RemoveLine removes the line of progress, if there is one.
func RemoveLine() {
	if lineShown.Swap(false) {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}

// AfterProgress returns a writer to a terminal that removes the line of progress before.
func AfterProgress(out io.Writer) io.Writer { return afterProgress{out} }

type afterProgress struct{ io.Writer }

func (a afterProgress) Write(text []byte) (int, error) {
	RemoveLine()
	return a.Writer.Write(text)
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// CanOverwrite reports whether f is a terminal that can overwrite a line. TERM=dumb is one that cannot.
func CanOverwrite(f *os.File) bool { return IsTerminal(f) && os.Getenv("TERM") != "dumb" }
