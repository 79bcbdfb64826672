// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"slices"
	"time"

	"krping/proc"
)

// Experiment is a sweep that shows one thing.
type Experiment struct {
	Name  string
	test  proc.Command
	grids []Grid
	View  // its text has two sentences
}

// bandwidth and latency are tests of SENDs.
var (
	bandwidth = proc.Command{Test: proc.Verbs, Verb: proc.Send, Measure: "bw"}
	latency   = proc.Command{Test: proc.Verbs, Verb: proc.Send}
)

// Experiments are all that `krpingctl experiment` knows.
var Experiments = []Experiment{
	{
		Name: "threads",
		test: proc.Command{Test: proc.Bandwidth},
		grids: []Grid{
			{"threads of one connection", []Axis{{"size", []string{"4096"}}, {"threads", []string{"1", "2", "4", "8"}}}},
			{"connections of one thread", []Axis{{"size", []string{"4096"}}, {"connections", []string{"1", "10", "100", "1000"}}}},
		},
		View: View{
			Title: "Throughput against threads, and against connections",
			Text: "The rate of RDMA WRITEs that more threads of one connection each reach, and that one thread reaches on more connections. " +
				"Threads share the work between CPUs; connections only add state that both devices must keep, which costs most once it no longer fits in their caches.",
			Columns: []string{"ops", "Gbit/s", "ops/s", "CPU %", "CPU µs/op"},
			Charts:  []string{"Gbit/s", "CPU µs/op"},
		},
	},
	{
		Name:  "types",
		test:  bandwidth,
		grids: []Grid{{"", []Axis{{"qp", []string{"rc", "uc", "ud"}}, {"size", []string{"64", "256", "1024"}}}}},
		View: View{
			Title: "Reliable and unreliable queue pairs",
			Text: "The rate of SENDs on reliable connections (rc), unreliable connections (uc) and unreliable datagrams (ud), and how many of them were lost. " +
				"rc sends again what the network or a slow receiver drops, and loses no message; with uc and ud that is lost: compare with `tc qdisc add dev eth0 root netem loss 1%` on this host.",
			Columns: []string{"sent", "lost", "lost %", "Gbit/s", "ops/s"},
			Charts:  []string{"ops/s", "Gbit/s", "lost %"},
		},
	},
	{
		Name: "srq",
		test: with(bandwidth, func(c *proc.Command) { c.Validate = true }),
		grids: []Grid{
			{"", []Axis{{"size", []string{"1024"}}, {"srq", []string{"off"}}, {"rxdepth", []string{"64"}}, {"connections", []string{"1", "10", "100", "1000"}}}},
			{"", []Axis{{"size", []string{"1024"}}, {"srq", []string{"on"}}, {"rxdepth", []string{"1024"}}, {"connections", []string{"1", "10", "100", "1000"}}}},
		},
		View: View{
			Title: "A shared receive queue, and a receive queue for each queue pair",
			Text: "The receives that the peer keeps posted for SENDs, their memory, and the rate, with a receive queue for each queue pair (srq off) and with one that all share (srq on). " +
				"Own queues need receives for each queue pair, a shared one only for the messages that are in flight on all together; data is checked, so each receive has a buffer.",
			Columns: []string{"receives", "receive KiB", "Gbit/s", "ops/s"},
			Charts:  []string{"receives", "ops/s"},
		},
	},
	{
		Name:  "mtu",
		test:  bandwidth,
		grids: []Grid{{"", []Axis{{"mtu", []string{"256", "512", "1024"}}, {"size", []string{"256", "1024", "4096", "16384", "65536"}}}}},
		View: View{
			Title: "Message size against the path MTU",
			Text: "A message goes in as many packets as its size divided by the MTU, rounded up, and each packet costs headers and work. " +
				"So a larger MTU makes long messages cheaper and does nothing for those that fit in one packet; values above 1024 need frames of more than 1500 bytes, and --mtu.",
			Columns: []string{"packets/message", "Gbit/s", "ops/s", "CPU µs/op"},
			Charts:  []string{"Gbit/s", "packets/message"},
		},
	},
	{
		Name: "polling",
		test: latency,
		grids: []Grid{
			{"", []Axis{{"measure", []string{"bw"}}, {"poll", []string{"off", "on"}}, {"size", []string{"64", "4096", "65536"}}}},
			{"", []Axis{{"measure", []string{"lat"}}, {"poll", []string{"off", "on"}}, {"size", []string{"64", "4096", "65536"}}}},
		},
		View: View{
			Title: "Polling against events",
			Text: "The CPU time of the sending thread, its rate with many messages in flight and its latency with one, when it polls for completions (poll on) and when it sleeps until an event (poll off). " +
				"Polling takes a CPU all the time and saves the wake-up, which counts most with one message in flight; the CPU time of interrupts and of the device's own threads is in neither.",
			Columns: []string{"CPU %", "CPU µs/op", "Gbit/s", "ops/s", "p50 µs", "p99 µs"},
			Charts:  []string{"CPU %", "ops/s", "p50 µs"},
		},
	},
	{
		Name:  "moderation",
		test:  bandwidth,
		grids: []Grid{{"", []Axis{{"size", []string{"64"}}, {"signal", []string{"1", "4", "16", "64"}}}}},
		View: View{
			Title: "Completion queue moderation",
			Text: "With signal=N the sender asks for the completion of one SEND in N, so there are about 1/N completions a message. " +
				"Each completion that is left out saves the device a write and the sender work, as CPU time and rate show, until other costs are larger.",
			Columns: []string{"completions/message", "CPU µs/op", "CPU %", "Gbit/s", "ops/s"},
			Charts:  []string{"completions/message", "ops/s", "CPU µs/op"},
		},
	},
}

func with(c proc.Command, change func(*proc.Command)) proc.Command {
	change(&c)
	return c
}

// Plan returns the experiment's plan against the peer of a command. An axis replaces the experiment's own of
// the same option; one that it has not is added.
func (e Experiment) Plan(peer proc.Command, axes []Axis, duration time.Duration) Plan {
	c := e.test
	c.Role, c.Addr, c.Port, c.Source = proc.Client, peer.Addr, peer.Port, peer.Source
	plan := Plan{Command: c, Duration: duration}
	for _, grid := range e.grids {
		plan.Grids = append(plan.Grids, Grid{grid.Name, slices.Clone(grid.Axes)})
	}
	for _, axis := range axes {
		plan.replace(axis)
	}
	return plan
}

func (p Plan) replace(axis Axis) {
	found := false
	for _, grid := range p.Grids {
		if i := grid.find(axis.Option); i >= 0 {
			grid.Axes[i], found = axis, true
		}
	}
	for i := range p.Grids {
		if !found {
			p.Grids[i].Axes = append(p.Grids[i].Axes, axis)
		}
	}
}

func (g Grid) find(option string) int {
	return slices.IndexFunc(g.Axes, func(a Axis) bool { return a.Option == option })
}
