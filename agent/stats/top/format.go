// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// digits formats a number with three digits and the unit that fits. Each unit is a thousand times
// the one before it and includes its separating space.
func digits(v float64, units ...string) string {
	for len(units) > 1 && v >= 999.5 {
		v /= 1000
		units = units[1:]
	}
	switch {
	case v == 0:
		return "0" + units[0]
	case v < 9.995:
		return fmt.Sprintf("%.2f%s", v, units[0])
	case v < 99.95:
		return fmt.Sprintf("%.1f%s", v, units[0])
	}
	return fmt.Sprintf("%.0f%s", v, units[0])
}

// rate formats bytes per second.
func rate(v float64) string {
	if v < 999.5 {
		return fmt.Sprintf("%.0f B/s", v)
	}
	return digits(v/1000, " kB/s", " MB/s", " GB/s", " TB/s")
}

// iops formats operations per second.
func iops(v float64) string {
	if v < 99999.5 {
		return fmt.Sprintf("%.0f", v)
	}
	return digits(v/1000, "k", "M", "G")
}

// latency formats a duration with three digits.
func latency(d time.Duration) string {
	return digits(float64(d)/1000, " µs", " ms", " s")
}

var levels = []rune("▁▂▃▄▅▆▇█")

// sparkline draws the newest values, one per column, scaled to the largest. Only 0 is drawn at the
// lowest level.
func sparkline(values []float64, width int) string {
	values = values[max(0, len(values)-width):]
	highest := 0.0
	for _, v := range values {
		highest = max(highest, v)
	}
	var line strings.Builder
	line.WriteString(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		level := 0
		if v > 0 {
			level = max(1, int(math.Ceil(v/highest*float64(len(levels)-1))))
		}
		line.WriteRune(levels[level])
	}
	return line.String()
}

// shorten cuts a text to at most width characters.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}
