// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// progress is a progress bar on stderr. It is nil, and prints nothing, unless stderr is a terminal.
type progress struct {
	what  string
	total int64
	shown time.Time
}

func newProgress(what string, total int64) *progress {
	if !isTerminal(os.Stderr) {
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
	filled := int(done * barWidth / max(p.total, 1))
	fmt.Fprintf(os.Stderr, "\r%s [%s%s] %3d%%", p.what, strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), done*100/max(p.total, 1))
}

func (p *progress) end() {
	if p != nil {
		fmt.Fprintln(os.Stderr)
	}
}

// fraction returns a function that sets the bar to a fraction, 0 to 1; nil without a bar.
func (p *progress) fraction() func(float64) {
	if p == nil {
		return nil
	}
	return func(done float64) { p.set(int64(done * float64(p.total))) }
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
