// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Names of the contenders, in the order of the report. The others are compared with the first.
const (
	perftest    = "perftest"
	moduleVerbs = "module"
	bridgeVerbs = "bridge"
	// The same, with each message filled and checked. They have no goal: perftest checks nothing.
	moduleChecks = "module-validates"
	bridgeChecks = "bridge-validates"
)

// VerbsContenders returns all contenders.
func VerbsContenders() []string {
	return append(DefaultVerbsContenders(), moduleChecks, bridgeChecks)
}

// DefaultVerbsContenders returns those that are measured if none are named.
func DefaultVerbsContenders() []string { return []string{perftest, moduleVerbs, bridgeVerbs} }

// verbsRun is one measurement of one contender.
type verbsRun struct {
	test  VerbsTest
	size  int
	count int
	addr  string // of the server
	port  int    // of the server, another one each time: that of a killed server may be busy
	poll  bool   // both sides busy-poll for completions, instead of sleeping
	check bool   // each message is filled and checked
}

// verbsSample is what one measurement has shown.
type verbsSample struct {
	value              float64 // in the row's unit
	lost               *uint64 // messages; nil if nobody counts
	waiting            bool    // the server had not ended some time after the client
	posts, completions uint64  // of the client; 0 if nobody counts
}

// verbsContender is a program with a server and a client.
type verbsContender struct {
	server, client func(r verbsRun) string // commands
	tcp            func(r verbsRun) bool   // the server listens by TCP, else by rdma_cm
	serves         bool                    // the server goes on after its client
	checks         bool                    // each message is filled and checked
	parse          func(r verbsRun, out string) (verbsSample, error)
}

var verbsContenders = map[string]verbsContender{
	perftest: {
		server: perftestCommand, client: func(r verbsRun) string { return perftestCommand(r) + " " + r.addr },
		tcp: func(r verbsRun) bool { return r.test.QP == "uc" }, parse: parsePerftest,
	},
	moduleVerbs: ofModule(false), moduleChecks: ofModule(true),
	bridgeVerbs: ofBridge(false), bridgeChecks: ofBridge(true),
}

func ofModule(checks bool) verbsContender {
	return verbsContender{
		server: func(r verbsRun) string {
			return fmt.Sprintf("krpingctl server --addr %s --port %d --verbs%s", r.addr, r.port, flagIf(r.poll, " --poll"))
		},
		client: func(r verbsRun) string { return "krpingctl client" + clientFlags(r) },
		checks: checks, parse: parseKrping,
	}
}

func ofBridge(checks bool) verbsContender {
	return verbsContender{
		server: func(r verbsRun) string {
			return fmt.Sprintf("krping-bridge --ping %s:%d%s", r.addr, r.port, flagIf(r.poll, " --ping-poll"))
		},
		client: func(r verbsRun) string { return "krping-bridge client" + clientFlags(r) },
		serves: true, checks: checks, parse: parseKrping,
	}
}

func flagIf(given bool, flag string) string {
	if given {
		return flag
	}
	return ""
}

// clientFlags returns the options of krpingctl client and krping-bridge client, which are the same.
func clientFlags(r verbsRun) string {
	t, measure := r.test, "bw"
	if t.Latency {
		measure = "lat"
	}
	flags := fmt.Sprintf(" --addr %s:%d --verb %s --qp %s --%s --count %d --json%s%s", r.addr, r.port, t.Verb, t.QP, measure, r.count, flagIf(r.poll, " --poll"),
		flagIf(r.check, " --validate"))
	if !t.atomic() {
		flags += fmt.Sprintf(" --size %d", r.size)
	}
	if t.Latency {
		return flags
	}
	flags += fmt.Sprintf(" --txdepth %d --signal %d", depth(r.size), sharing(r.size))
	if t.Verb == "send" {
		flags += fmt.Sprintf(" --rxdepth %d", receives)
	}
	if t.fetches() {
		flags += fmt.Sprintf(" --reads %d", outstanding)
	}
	return flags
}

// krpingReport is the part that matters of the JSON of both clients.
type krpingReport struct {
	Gbit    float64 `json:"gbit_per_second"`
	Rate    float64 `json:"ops_per_second"`
	Latency *struct {
		P50 float64 `json:"p50_ns"`
	} `json:"latency"`
	Messages *struct { // of the module
		Lost        uint64 `json:"lost"`
		Posts       uint64 `json:"posts"`
		Completions uint64 `json:"completions"`
	} `json:"messages"`
	Arrived *struct { // of the bridge, as its posts and completions
		Lost uint64 `json:"lost"`
	} `json:"arrived"`
	Posts       uint64 `json:"posts"`
	Completions uint64 `json:"completions"`
}

func parseKrping(r verbsRun, out string) (verbsSample, error) {
	var report krpingReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return verbsSample{}, fmt.Errorf("the report is no JSON: %w\n%s", err, out)
	}
	s := verbsSample{posts: report.Posts, completions: report.Completions}
	if report.Arrived != nil {
		s.lost = &report.Arrived.Lost
	}
	if m := report.Messages; m != nil {
		s.posts, s.completions, s.lost = m.Posts, m.Completions, &m.Lost
	}
	switch unit := r.test.unit(r.size); {
	case r.test.Latency && report.Latency == nil:
		return s, fmt.Errorf("the report has no latency: %s", out)
	case r.test.Latency && r.test.fetches():
		s.value = report.Latency.P50 / 1e3
	case r.test.Latency: // half of a round trip, as perftest prints it
		s.value = report.Latency.P50 / 2e3
	case unit == "Gbit/s":
		s.value = report.Gbit
	default:
		s.value = report.Rate
	}
	if s.value <= 0 {
		return s, fmt.Errorf("the report has no result: %s", strings.TrimSpace(out))
	}
	return s, nil
}
