// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/dustin/go-humanize"

	"krping/agent/host/rdmalink"
	"krping/agent/stats/sampler"
	"krping/bridge/display"
)

// The smallest terminal supported.
const minWidth, minHeight = 60, 12

// view says how to show a sample.
type view struct {
	width, height int // of the terminal
	host          string
	selected      key
	order         order
	paused, help  bool
	history       map[key]history
	styles        styles
}

// key identifies a session. A host can serve a volume and attach another of the same name.
type key struct{ role, name string }

func keyOf(s sampler.Session) key { return key{s.Role, s.Name} }

// history is a session's past throughput in bytes per second, oldest first.
type history struct{ read, write []float64 }

// order is the order of the table of sessions.
type order int

const (
	byName order = iota
	byBytes
	byOps
	byLatency
	orders // number of orders
)

func (o order) String() string {
	return [...]string{"name", "throughput", "IOPS", "latency"}[o]
}

// sorted returns the sessions in this order, largest first.
func (o order) sorted(sessions []sampler.Session) []sampler.Session {
	value := map[order]func(sampler.Session) float64{
		byName:    func(sampler.Session) float64 { return 0 },
		byBytes:   sampler.Session.BytesPerSecond,
		byOps:     sampler.Session.OpsPerSecond,
		byLatency: func(s sampler.Session) float64 { return float64(slowest(s)) },
	}[o]
	sessions = slices.Clone(sessions)
	slices.SortStableFunc(sessions, func(a, b sampler.Session) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
	})
	return sessions
}

// slowest returns the largest p99 of a session's operations.
func slowest(s sampler.Session) time.Duration {
	var d time.Duration
	for _, l := range s.Latencies {
		if l.Stage == "total" {
			d = max(d, l.P99)
		}
	}
	return d
}

// render draws a whole screen: height lines of at most width columns.
func render(s sampler.Sample, v view) string {
	s = printable(s)
	if v.width < minWidth || v.height < minHeight {
		return clip([]string{
			"krpingctl top", fmt.Sprintf("needs %dx%d, this is", minWidth, minHeight), fmt.Sprintf("%dx%d; q quits", v.width, v.height),
		}, v.width, v.height)
	}
	lines := []string{v.title(s), v.linkLine(s)}
	lines = append(lines, v.problems(s.Problems, 3)...)
	lines = append(lines, "")
	switch sessions := v.order.sorted(s.Sessions); {
	case v.help:
		lines = append(lines, helpLines()...)
	case len(sessions) == 0:
		lines = append(lines, nothing(s)...)
	default:
		selected := v.index(sessions)
		details := append([]string{""}, v.details(sessions[selected], s.NoLatencies)...)
		room := v.height - len(lines) - 1 - len(details) - 1 // minus the table's header and the footer
		lines = append(lines, v.table(sessions, selected, max(room, 3))...)
		lines = append(lines, details...)
	}
	lines = lines[:min(len(lines), v.height-1)]
	for len(lines) < v.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines, v.styles.dim(" q quit   ↑↓ select   s sort   p pause   ? help"))
	return clip(lines, v.width, v.height)
}

// Text formats a sample as plain text, with details of every session.
func Text(s sampler.Sample, host string) string {
	s = printable(s)
	v := view{width: 80, host: host, styles: plain()}
	lines := []string{v.title(s), v.linkLine(s)}
	lines = append(lines, v.problems(s.Problems, len(s.Problems))...)
	lines = append(lines, "")
	sessions := v.order.sorted(s.Sessions)
	if len(sessions) == 0 {
		lines = append(lines, nothing(s)...)
	} else {
		lines = append(lines, v.table(sessions, -1, len(sessions))...)
	}
	for _, session := range sessions {
		lines = append(append(lines, ""), v.details(session, s.NoLatencies)...)
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// printable returns the sample with all texts of others made safe to print.
func printable(s sampler.Sample) sampler.Sample {
	s.Sessions, s.Problems = slices.Clone(s.Sessions), slices.Clone(s.Problems)
	for i := range s.Sessions {
		v := &s.Sessions[i]
		for _, text := range []*string{&v.Name, &v.Role, &v.Mode, &v.Device, &v.State, &v.Peer, &v.IBDev} {
			*text = display.Text(*text)
		}
	}
	for i := range s.Problems {
		s.Problems[i] = display.Text(s.Problems[i])
	}
	s.NoLatencies = display.Text(s.NoLatencies)
	return s
}

func clip(lines []string, width, height int) string {
	lines = lines[:min(len(lines), height)]
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], width, "…")
	}
	return strings.Join(lines, "\n")
}

func (v view) title(s sampler.Sample) string {
	number := display.Count(len(s.Sessions), "session")
	text := fmt.Sprintf(" krping on %s   %s   every %.1f s   %s", v.host, s.Time.Format("15:04:05"), s.Interval.Seconds(), number)
	if v.order != byName {
		text += ", by " + v.order.String()
	}
	text = v.styles.title(text)
	if v.paused {
		text += "   " + v.styles.bad("PAUSED")
	}
	return text
}

func (v view) linkLine(s sampler.Sample) string {
	if len(s.Links) == 0 {
		return " no RDMA device"
	}
	var links []string
	for _, l := range s.Links {
		for _, p := range l.Ports {
			text := display.Text(l.PortName(p))
			if p.Netdev != "" {
				text += " on " + display.Text(p.Netdev)
			}
			paint := v.styles.dim
			switch {
			case p.State == rdmalink.Active:
				paint = v.styles.good
			case s.Needs(l):
				paint = v.styles.bad
			}
			links = append(links, text+" "+paint(p.State))
		}
	}
	return " " + strings.Join(links, ", ")
}

// problems returns at most that many lines, to leave room for the sessions.
func (v view) problems(problems []string, most int) []string {
	var lines []string
	for i, text := range problems {
		if i == most-1 && len(problems) > most {
			text = fmt.Sprintf("and %d more", len(problems)-i)
		}
		if i < most {
			lines = append(lines, v.styles.bad(" ! "+text))
		}
	}
	return lines
}

func nothing(s sampler.Sample) []string {
	if !s.Loaded {
		return []string{" The module is not loaded. Load it: modprobe rdma_krping"}
	}
	if s.Hidden {
		return []string{" The module's sessions are not shown."}
	}
	return []string{" No session. Attach one: krpingctl client --addr ADDRESS --block VOLUME"}
}

func helpLines() []string {
	return []string{
		" q, Ctrl-C   quit",
		" ↑ ↓, k j    select the session whose details are shown below the table",
		" s           sort by name, throughput, IOPS, latency (largest p99)",
		" p, space    pause or resume",
		" ?           show or hide this help",
		"",
		" LATENCY is of the bios that ended in the last interval. Its stages:",
		"   queue   submit to issue          send   issue to command posted",
		"   peer    posted to response       finish response to end",
		"   device  issue to end             total  submit to end",
		" BUSY is commands in flight and their limit. +N is the increase in the interval.",
	}
}

// index returns the index of the selected session, or 0 if that has gone.
func (v view) index(sessions []sampler.Session) int {
	return max(0, slices.IndexFunc(sessions, func(s sampler.Session) bool { return keyOf(s) == v.selected }))
}

// table returns a header and at most that many rows, including the selected one.
func (v view) table(sessions []sampler.Session, selected, rows int) []string {
	lines := []string{v.styles.head(fmt.Sprintf("   %-13s%-13s%10s%10s%6s%9s%5s%5s%6s", "VOLUME", "STATE", "READ", "WRITE", "IOPS", "BUSY", "ERR", "CRC", "RECON"))}
	first := max(0, min(selected-rows/2, len(sessions)-rows))
	for i := first; i < min(first+rows, len(sessions)); i++ {
		s := sessions[i]
		name := s.Name
		if s.Role == "target" {
			name += " (served)"
		}
		row := fmt.Sprintf("%-13s%-13s%10s%10s%6s%9s%5d%5d%6d", shorten(name, 12), s.State, rate(s.Read.BytesPerSecond), rate(s.Write.BytesPerSecond),
			iops(s.OpsPerSecond()), fmt.Sprintf("%d/%d", s.Inflight, s.Depth), s.Errors.Total, s.CRCErrors.Total, s.Reconnects.Total)
		switch {
		case i == selected:
			row = " ▸ " + v.styles.selected(row)
		case s.State != "live":
			row = "   " + v.styles.bad(row)
		default:
			row = "   " + row
		}
		lines = append(lines, row)
	}
	return lines
}

// details returns the lines about one session.
func (v view) details(s sampler.Session, noLatencies string) []string {
	what := []string{v.styles.title(s.Name)}
	if s.Device != "" {
		what = append(what, "/dev/"+s.Device, s.Mode+", target "+s.Peer)
	} else {
		what = append(what, "served at "+s.Peer)
	}
	if s.IBDev != "" {
		what = append(what, "over "+s.IBDev)
	}
	what = append(what, humanize.IBytes(s.Size))
	past := v.history[keyOf(s)]
	lines := []string{
		" " + strings.Join(what, "  "),
		v.flowLine("read ", s.Read, v.styles.read, past.read),
		v.flowLine("write", s.Write, v.styles.write, past.write),
	}
	var counts []string
	for _, c := range []struct {
		name string
		sampler.Count
	}{{"errors", s.Errors}, {"CRC errors", s.CRCErrors}, {"retries", s.Retries}, {"reconnects", s.Reconnects}, {"stalls", s.Stalls}} {
		text := fmt.Sprintf("%s %d", c.name, c.Total)
		if c.Delta > 0 {
			text = v.styles.bad(fmt.Sprintf("%s +%d", text, c.Delta))
		}
		counts = append(counts, text)
	}
	lines = append(lines, "   "+strings.Join(counts, "   "), "")
	switch {
	case s.Device == "":
		return append(lines, v.styles.dim("   No latencies: they are measured on the host that attaches the volume."))
	case noLatencies != "":
		for text := range strings.SplitSeq(ansi.Wordwrap("No latencies: "+noLatencies, v.width-6, ""), "\n") {
			lines = append(lines, v.styles.dim("   "+text))
		}
		return lines
	}
	return append(lines, v.latencies(s.Latencies)...)
}

// flowLine formats one direction of I/O, with a sparkline on a terminal.
func (v view) flowLine(name string, f sampler.Flow, paint func(...string) string, past []float64) string {
	line := ""
	if v.history != nil {
		line = paint(sparkline(past, v.width-53))
	}
	return fmt.Sprintf("   %s  %s %10s  %7s IOPS  %9s in all", name, line, rate(f.BytesPerSecond), iops(f.OpsPerSecond), humanize.IBytes(f.Bytes.Total))
}

var stages = []string{"queue", "send", "peer", "finish", "device", "total"}

// latencies returns a table with a row per percentile and a column per stage. Reads and writes
// always have rows, so that the screen does not jump.
func (v view) latencies(all []sampler.Latency) []string {
	head := fmt.Sprintf("   %-13s%6s    ", "LATENCY", "BIOS")
	for _, stage := range stages {
		head += fmt.Sprintf("%9s", stage)
	}
	lines := []string{v.styles.head(head)}
	ops := []string{"READ", "WRITE"}
	for _, l := range all {
		if !slices.Contains(ops, l.Op) {
			ops = append(ops, l.Op)
		}
	}
	for _, op := range ops {
		byStage := map[string]sampler.Latency{}
		for _, l := range all {
			if l.Op == op {
				byStage[l.Stage] = l
			}
		}
		for i, row := range []struct {
			name  string
			value func(sampler.Latency) time.Duration
		}{
			{"p50", func(l sampler.Latency) time.Duration { return l.P50 }},
			{"p99", func(l sampler.Latency) time.Duration { return l.P99 }},
			{"max", func(l sampler.Latency) time.Duration { return l.Max }},
		} {
			line := fmt.Sprintf("   %-13s%6s", "", "")
			if i == 0 {
				line = fmt.Sprintf("   %-13s%6d", op, byStage["total"].Count)
			}
			line += " " + row.name
			for _, stage := range stages {
				text := "-"
				if l, found := byStage[stage]; found {
					text = latency(row.value(l))
				}
				line += fmt.Sprintf("%9s", text)
			}
			lines = append(lines, line)
		}
	}
	return lines
}
