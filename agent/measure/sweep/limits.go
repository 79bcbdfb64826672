// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/host/rdmalink"
	"krping/agent/measure/parallel"
	"krping/proc"
)

// scaling are options that change how much a point needs, not what of.
var scaling = []string{"size", "threads", "connections", "txdepth", "signal", "rate", "poll"}

// demanding returns, of points that need the same kind of things, the one with the most connections, and of
// these the one with the largest messages.
func demanding(points []Point) []Point {
	var kinds []string
	var most []Point
	for _, point := range points {
		settings := slices.DeleteFunc(slices.Clone(point.Settings), func(s Setting) bool { return slices.Contains(scaling, s.Option) })
		kind := describe(settings)
		i := slices.Index(kinds, kind)
		switch {
		case i < 0:
			kinds, most = append(kinds, kind), append(most, point)
		case point.total() > most[i].total(), point.total() == most[i].total() && point.Command.Size > most[i].Command.Size:
			most[i] = point
		}
	}
	return most
}

// rehearse runs the most demanding points for a moment: a limit of the peer, of the module or of a device that
// the sweep would meet is an error before anything is measured. It returns the last point that it ran.
func (p Plan) rehearse(ctx context.Context, fs proc.FS, points []Point) (last Point, err error) {
	if len(points) == 1 {
		return last, nil // it meets its limit itself
	}
	for i, point := range demanding(points) {
		o := parallel.Options{Duration: time.Millisecond}
		if point.Command.Test == proc.Verbs {
			one := uint32(1)
			point.Command.Duration, point.Command.Count, o.Duration = 0, &one, 0
		}
		if _, err := runPoint(ctx, fs, point, i > 0, o); err != nil {
			return last, fmt.Errorf("nothing was measured, because this point cannot be: %s: %w%s", point, err, advice(err, point))
		}
		last = point
	}
	return last, nil
}

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

// advice names the option that raises a limit, or returns "".
func advice(err error, point Point) string {
	connections := point.total()
	if point.Command.Test == proc.Verbs {
		connections += point.Threads // one to control each test
	}
	text := ""
	switch failure := err.Error(); {
	case strings.Contains(failure, "the server has its maximum of connections"):
		text = fmt.Sprintf("start the peer's krping-bridge with --ping-max-connections %d or more", connections)
	case strings.Contains(failure, "the server has not enough memory"):
		text = "start the peer's krping-bridge with a larger --max-memory, or give a smaller --rxdepth, --sizes or --connections; its device may lack queue pairs, too"
	case strings.Contains(failure, "size is too large"):
		text = fmt.Sprintf("start the peer's krping-bridge with --ping-max-size %d or more", point.Command.Size)
	case errors.Is(err, unix.EAGAIN):
		text = fmt.Sprintf("the module runs at most %d threads at a time: give fewer --threads and more --connections", maxThreads)
	case errors.Is(err, unix.EMFILE):
		text = "each thread opens two files: raise the limit with ulimit -n"
	case errors.Is(err, unix.ENOMEM):
		text = "this host or its device has too little memory or too few queue pairs: give fewer --connections, or a smaller --sizes, --txdepth or --rxdepth"
	default:
		return ""
	}
	return "; " + text
}

// packets returns how many packets each device has sent, if it counts them.
func packets() map[string]uint64 {
	sent := map[string]uint64{}
	links, _ := rdmalink.List() // without it the column is missing
	for _, link := range links {
		counters, _ := rdmalink.Counters(link.Name) // the same
		for _, port := range counters {
			sent[link.Name] += port["sent_pkts"] // Soft-RoCE's
		}
		ports, _ := rdmalink.Ports("/sys", link.Name)
		for _, port := range ports {
			sent[link.Name] += port.Counters["port_xmit_packets"]
		}
	}
	return sent
}
