// SPDX-License-Identifier: Apache-2.0

package bioview

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"time"
)

// heatMap counts bios by time, in columns, and by latency, in rows. The columns get wider as time
// passes.
type heatMap struct {
	start time.Time
	width time.Duration // of a column; 0 while the map is empty
	cells [heatColumns][heatRows]uint64
}

const (
	heatColumns   = 64
	heatRows      = 60 // from 1 us on
	rowsPerOctave = 2  // an octave is a factor of 2
	minWidth      = 10 * time.Millisecond
	shades        = " .:-=+*#%@"
)

// heatFrom has the least latency of each row.
var heatFrom = func() (from [heatRows]time.Duration) {
	for row := range from {
		from[row] = time.Duration(math.Ceil(float64(time.Microsecond) * math.Exp2(float64(row)/rowsPerOctave)))
	}
	return from
}()

func heatRow(latency time.Duration) int {
	octave := bits.Len64(uint64(max(latency/time.Microsecond, 1))) - 1
	row := min(octave*rowsPerOctave, heatRows-1)
	for row+1 < heatRows && latency >= heatFrom[row+1] {
		row++
	}
	return row
}

// add counts a bio. The first bio defines the first column, which also counts bios submitted before it.
func (h *heatMap) add(at time.Time, latency time.Duration) {
	if h.width == 0 {
		h.start, h.width = at, minWidth
	}
	elapsed := at.Sub(h.start)
	for elapsed >= heatColumns*h.width {
		h.widen()
	}
	h.cells[max(elapsed/h.width, 0)][heatRow(latency)]++
}

// widen doubles the width of the columns.
func (h *heatMap) widen() {
	for i := range h.cells {
		if i < heatColumns/2 {
			for row := range h.cells[i] {
				h.cells[i][row] = h.cells[2*i][row] + h.cells[2*i+1][row]
			}
		} else {
			h.cells[i] = [heatRows]uint64{}
		}
	}
	h.width *= 2
}

func (h *heatMap) write(out *printer) {
	low, high, last, most := heatRows, 0, 0, uint64(1)
	for i := range h.cells {
		for row, n := range h.cells[i] {
			if n > 0 {
				low, high, last, most = min(low, row), max(high, row), i, max(most, n)
			}
		}
	}
	out.print("total latency over time; one column is %v, %s are 1 to %d bios\n", h.width, shades[1:], most)
	empty := 0
	for row := high; row >= low; row-- {
		if h.isEmpty(row) {
			if empty++; empty == 2 { // collapse empty rows: a far outlier would fill the screen
				out.print("%10s |\n", "...")
			}
			continue
		}
		if empty == 1 {
			out.print("%10s |\n", rowLabel(row+1))
		}
		empty = 0
		var line strings.Builder
		for i := 0; i <= last; i++ {
			line.WriteByte(shade(h.cells[i][row], most))
		}
		out.print("%10s |%s\n", rowLabel(row), strings.TrimRight(line.String(), " "))
	}
	out.print("%10s +%s\n%12s%-*s%v\n", "", strings.Repeat("-", last+1), "", max(last-6, 1), "0", time.Duration(last+1)*h.width)
}

func (h *heatMap) isEmpty(row int) bool {
	for i := range h.cells {
		if h.cells[i][row] > 0 {
			return false
		}
	}
	return true
}

// shade is logarithmic, so that a single outlier among thousands is visible.
func shade(n, most uint64) byte {
	if n == 0 {
		return shades[0]
	}
	const steps = len(shades) - 2
	return shades[1+int(math.Round(float64(steps)*math.Log(float64(n))/math.Log(float64(max(most, 2)))))]
}

// rowLabel returns the lower limit of a row's latencies.
func rowLabel(row int) string {
	us := math.Exp2(float64(row) / rowsPerOctave)
	switch {
	case us < 1000:
		return fmt.Sprintf("%.3g us", us)
	case us < 1e6:
		return fmt.Sprintf("%.3g ms", us/1000)
	default:
		return fmt.Sprintf("%.3g s", us/1e6)
	}
}
