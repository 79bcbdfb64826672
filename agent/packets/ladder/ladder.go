// SPDX-License-Identifier: Apache-2.0

// Package ladder draws I/Os as sequence diagrams between host and target, in text and SVG, and counts
// the packets that each kind of I/O needs.
package ladder

import (
	"fmt"
	"io"
	"strings"
	"time"

	"krping/agent/packets/dissect"
)

// rung is one arrow: a packet, or several consecutive packets of the same kind.
type rung struct {
	at       time.Duration // of the first packet, since the I/O began
	fromHost bool
	what     string
	note     string
	packets  int
	bytes    int
}

// rungs returns the arrows of an I/O.
func rungs(o *dissect.IO) []rung {
	var drawn []rung
	for _, s := range o.Steps {
		what := s.What
		if s.Retransmitted {
			what += " (retransmission)"
		}
		if n := len(drawn); n > 0 {
			last := &drawn[n-1]
			if last.what == what && last.fromHost == s.FromHost && s.Note == "" && last.note == "" {
				last.packets++
				last.bytes += s.Bytes
				continue
			}
		}
		drawn = append(drawn, rung{s.Time.Sub(o.Steps[0].Time), s.FromHost, what, s.Note, 1, s.Bytes})
	}
	return drawn
}

// text returns the arrow's label.
func (r rung) text() string {
	text := r.what
	if r.packets > 1 {
		text = fmt.Sprintf("%d x %s", r.packets, r.what)
	}
	if r.note != "" {
		text += ": " + r.note
	}
	if r.bytes > 0 {
		text += fmt.Sprintf(" [%d]", r.bytes)
	}
	return text
}

// title describes an I/O, with its packets, duration and status.
func title(o *dissect.IO) string {
	text := fmt.Sprintf("I/O %d: %s %s", o.ID, o.Protocol, o.Name)
	if o.Bytes > 0 {
		text += fmt.Sprintf(" %d bytes", o.Bytes)
	}
	if o.Inline {
		text += " inline"
	}
	if o.Detail != "" {
		text += ", " + o.Detail
	}
	text += fmt.Sprintf(": %s, %.3f ms, ", packets(o.Packets()), ms(o.Duration()))
	if o.Status == "" {
		return text + "no response"
	}
	return text + o.Status
}

// lossNote returns a warning if packets may be missing from the ladder, or "".
func lossNote(o *dissect.IO) string {
	switch {
	case o.Cut:
		return "may be incomplete: too little was captured of some packets to tell their I/O"
	case o.Lost == 0:
		return ""
	}
	return fmt.Sprintf("may be incomplete: %s of this connection not captured while the I/O was in flight", packets(float64(o.Lost)))
}

func packets(n float64) string {
	if n == 1 {
		return "1 packet"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + " packets"
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

const textWidth = 96 // characters between the lines of host and target

// Write draws an I/O as text: the time in ms, and an arrow per packet or per run of packets of the same
// kind. Arrows that carry data are drawn with = and have the bytes in brackets.
func Write(w io.Writer, o *dissect.IO) error {
	var b strings.Builder
	fmt.Fprintln(&b, title(o))
	if note := lossNote(o); note != "" {
		fmt.Fprintln(&b, note)
	}
	host, target := "host "+o.Host.String(), "target "+o.Target.String()
	fmt.Fprintf(&b, "%9s  %-*s%s\n", "ms", textWidth+2-len(target), host, target)
	for _, r := range rungs(o) {
		fmt.Fprintf(&b, "%9.3f  |%s|\n", ms(r.at), arrow(r))
	}
	fmt.Fprintln(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// arrow returns an arrow of textWidth characters.
func arrow(r rung) string {
	line := "-"
	if r.bytes > 0 {
		line = "="
	}
	text := r.text()
	if room := textWidth - 8; len(text) > room {
		text = text[:room-3] + "..."
	}
	rest := strings.Repeat(line, textWidth-len(text)-5)
	if r.fromHost {
		return line + line + " " + text + " " + rest + ">"
	}
	return "<" + rest + " " + text + " " + line + line
}
