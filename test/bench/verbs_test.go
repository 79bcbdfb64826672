// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestPerftestColumn(t *testing.T) {
	const bandwidth = ` local address: LID 0000
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 64         1000           0.010506            0.009488            0.018532
`
	const latency = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 64      1000          72.79          500.14       76.11    	       82.92       	36.43  		339.12  		500.14
`
	for _, tc := range []struct {
		out, head string
		want      float64
	}{
		{bandwidth, "BW peak", 0.010506}, {bandwidth, "BW average", 0.009488}, {bandwidth, "MsgRate", 0.018532},
		{latency, "t_min", 72.79}, {latency, "t_typical", 76.11},
	} {
		if got, err := perftestColumn(tc.head)(tc.out); err != nil || got != tc.want {
			t.Errorf("%s: %v, %v, want %v", tc.head, got, err, tc.want)
		}
	}
	if s, err := parsePerftest(verbsRun{size: 65536}, " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      512              30.00              25.00     0.000400\n"); err != nil || math.Abs(s.value-0.2097152) > 1e-9 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, out := range []string{"", " #bytes BW peak[x]\n", "Couldn't connect"} {
		if got, err := perftestColumn("BW peak")(out); err == nil {
			t.Errorf("%q: %v", out, got)
		}
	}
}

func TestKrpingReport(t *testing.T) {
	const module = `{"gbit_per_second":0.5,"ops_per_second":9000,"latency":{"p50_ns":4000},"messages":{"lost":3,"posts":103,"completions":207}}`
	const bridge = `{"gbit_per_second":0.5,"ops_per_second":9000,"posts":100,"completions":113,"arrived":{"lost":2},"latency":{"p50_ns":4000}}`
	send, read := VerbsTest{Verb: "send", Latency: true}, VerbsTest{Verb: "read", Latency: true}
	rate := VerbsTest{Verb: "send"}
	for _, tc := range []struct {
		out                      string
		test                     VerbsTest
		size                     int
		value                    float64
		lost, posts, completions uint64
	}{
		{module, send, 64, 2, 3, 103, 207}, {module, read, 64, 4, 3, 103, 207}, {bridge, send, 64, 2, 2, 100, 113},
		{bridge, rate, 64, 9000, 2, 100, 113}, {module, rate, 65536, 0.5, 3, 103, 207},
	} {
		got, err := parseKrping(verbsRun{test: tc.test, size: tc.size}, tc.out)
		if err != nil || got.value != tc.value || got.lost == nil || *got.lost != tc.lost || got.posts != tc.posts || got.completions != tc.completions {
			t.Errorf("%+v of %s: %+v, %v", tc.test, tc.out, got, err)
		}
	}
	for _, out := range []string{"", "{}", `{"ops_per_second":0}`} {
		if got, err := parseKrping(verbsRun{test: rate, size: 64}, out); err == nil {
			t.Errorf("%q: %+v", out, got)
		}
	}
	if got, err := parseKrping(verbsRun{test: send, size: 64}, `{"ops_per_second":1}`); err == nil {
		t.Errorf("no latency: %+v", got)
	}
}

// By the binomial distribution: of eight values, with one left out at each end, 1 - 2 * (1 + 8) / 2^8.
func TestMedianInterval(t *testing.T) {
	for _, tc := range []struct {
		n, index   int
		confidence float64
	}{{1, 0, 0}, {2, 0, 0.5}, {3, 0, 0.75}, {5, 0, 0.9375}, {8, 1, 0.9297}, {9, 1, 0.9609}, {10, 1, 0.9785}, {11, 2, 0.9346}, {20, 5, 0.9586}} {
		index, confidence := medianInterval(tc.n)
		if index != tc.index || math.Abs(confidence-tc.confidence) > 1e-4 {
			t.Errorf("of %d: %d, %.4f, want %d, %.4f", tc.n, index, confidence, tc.index, tc.confidence)
		}
	}
}

func sampleRow() VerbsRow {
	row := VerbsRow{Test: "ib_send_bw", QP: "uc", Verb: "send", Size: 64, Unit: "messages/s", Series: []VerbsSeries{
		{Contender: perftest, Values: []float64{1000, 2000, 4000}},
		{Contender: moduleVerbs, Values: []float64{1500, 2200, 6000}, Lost: []uint64{0, 7, 9}},
		{Contender: bridgeVerbs, Failure: "no\nanswer"},
	}}
	row.compare()
	return row
}

func TestVerbsRow(t *testing.T) {
	row := sampleRow()
	r := row.Series[1].Ratio
	if r == nil || !slices.Equal(r.Rounds, []float64{1.5, 1.1, 1.5}) || r.Median != 1.5 || r.Low != 1.1 || r.High != 1.5 || r.Goal != 1.2 || r.Missed {
		t.Errorf("%+v", r)
	}
	if row.Series[0].Ratio != nil || row.Series[2].Ratio != nil {
		t.Error("a ratio of perftest, or of a failure")
	}
	row.Latency = true
	row.compare()
	if r := row.Series[1].Ratio; r.Goal != 0.85 || !r.Missed {
		t.Errorf("%+v", r)
	}
	row.Series[0].Failure = "lost"
	row.Series[1].Ratio = nil
	if row.compare(); row.Series[1].Ratio != nil {
		t.Error("a ratio to a failure")
	}
}

func TestVerbsReport(t *testing.T) {
	slow := sampleRow()
	slow.Latency = true
	slow.compare()
	r := VerbsReport{Kernel: "6.1", CPUs: 2, Rounds: 3, Contenders: VerbsContenders(), Rows: []VerbsRow{sampleRow(), slow}, Counts: []VerbsCount{
		{Test: "ib_send_bw", QP: "rc", Size: 64, Contender: perftest, Packets: 1.5, Posts: 1, Completions: 0.03, Derived: true, Server: VerbsHostCount{0.5, 1000, 0, 10, 1}, Client: VerbsHostCount{0.25, 2000, 0, 20, 1}},
		{Test: "ib_send_bw", QP: "rc", Size: 64, Contender: moduleVerbs, Server: VerbsHostCount{Kernel: 1500, Steady: 12}, Client: VerbsHostCount{Switches: -0.01, Kernel: 400, Process: 100}},
		{Test: "ib_atomic_bw", QP: "rc", Verb: "cmp_swap", Size: 8, Contender: bridgeVerbs, Failure: "it hangs"},
	}}
	var text, data bytes.Buffer
	if err := r.WriteMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"intervals of 75%",
		"| ib_send_bw | uc   | 64   | messages/s | 2000     | 2200 (lost up to 9) | FAILED | 1.50 (1.10-1.50) ",
		"| 1.50 (1.10-1.50) MISSED ",
		"- FAILED: ib_send_bw uc, 64 bytes, bridge: no\n    answer\n",
		"| ib_send_bw   | rc          | 64   | perftest  | 1.50    | 1.00* | 0.03*",
		"| 0.5 + 0.2 | 1000 + 2000 | - | 3000 | 30 | |",
		"| 0.0 + 0.0 | 1500 + 400 | 0 + 100 | 2000 | 12 | 1.50, 2.50 |",
		"- FAILED: ib_atomic_bw rc cmp_swap, 8 bytes, bridge, counted: it hangs\n",
	} {
		if squeeze(want) == "" || !strings.Contains(squeeze(text.String()), squeeze(want)) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if missed, failed := r.Missed(); missed != 1 || failed != 3 {
		t.Errorf("%d missed, %d failed", missed, failed)
	}
	var back VerbsReport
	if err := r.WriteJSON(&data); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data.Bytes(), &back); err != nil || len(back.Rows) != 2 || back.Rows[0].Series[1].Ratio.Low != 1.1 || back.Counts[0].Client.Kernel != 2000 {
		t.Errorf("%+v, %v", back, err)
	}
}

// squeeze makes any white space, but line feeds, one space.
func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestVerbsTests(t *testing.T) {
	names := map[string]bool{}
	for _, test := range VerbsTests() {
		if names[test.Name()] {
			t.Errorf("%s is there twice", test.Name())
		}
		names[test.Name()] = true
		for _, size := range test.sizes([]int{2, 4096, 8192, 1 << 20}) {
			if test.QP == "ud" && size > pathMTU || test.atomic() && size != 8 {
				t.Errorf("%s of %d bytes", test.Name(), size)
			}
			if n, d := test.count(size), depth(size); !test.Latency && (n < d || n%sharing(size) != 0) {
				t.Errorf("%s of %d bytes: %d messages, %d in flight, %d share a completion", test.Name(), size, n, d, sharing(size))
			}
			if few, many := test.counts(size); few >= many || !test.Latency && few < depth(size) {
				t.Errorf("%s of %d bytes: counted from %d and %d messages", test.Name(), size, few, many)
			}
		}
	}
	if len(names) != 16 {
		t.Errorf("%d tests: %v", len(names), names)
	}
	if tests, err := MatchingVerbsTests("ib_send_bw (rc|ud)"); err != nil || len(tests) != 2 {
		t.Errorf("%v, %v", tests, err)
	}
	if _, err := MatchingVerbsTests("("); err == nil {
		t.Error("( is an expression")
	}
	if sizes, err := ParseSizes(VerbsSizes); err != nil || len(sizes) != 6 {
		t.Errorf("%v, %v", sizes, err)
	}
	for _, list := range []string{"0", "64,", "64k", "1048577"} {
		if sizes, err := ParseSizes(list); err == nil {
			t.Errorf("%q: %v", list, sizes)
		}
	}
}

// Both programs are told the same.
func TestVerbsCommands(t *testing.T) {
	for _, tc := range []struct {
		test             VerbsTest
		size             int
		perftest, krping string
	}{
		{
			VerbsTest{"ib_send_bw", "send", "uc", false}, 64,
			"ib_send_bw -F -d rxe0 -p 18515 -n 500 -c UC -s 64 -t 128 -Q 32 -r 512",
			" --addr A:18515 --verb send --qp uc --bw --count 500 --json --poll --size 64 --txdepth 128 --signal 32 --rxdepth 512",
		},
		{
			VerbsTest{"ib_write_lat", "write", "rc", true}, 64,
			"ib_write_lat -F -d rxe0 -p 18515 -n 500 -R -c RC -s 64",
			" --addr A:18515 --verb write --qp rc --lat --count 500 --json --poll --size 64",
		},
		{
			VerbsTest{"ib_atomic_bw", "cmp_swap", "rc", false}, 8,
			"ib_atomic_bw -F -d rxe0 -p 18515 -n 500 -R -A CMP_AND_SWAP -t 128 -Q 32 -o 16",
			" --addr A:18515 --verb cmp_swap --qp rc --bw --count 500 --json --poll --txdepth 128 --signal 32 --reads 16",
		},
	} {
		r := verbsRun{test: tc.test, size: tc.size, count: 500, addr: "A", port: 18515, poll: true}
		if got := perftestCommand(r); got != tc.perftest {
			t.Errorf("%s, want %s", got, tc.perftest)
		}
		if got := clientFlags(r); got != tc.krping {
			t.Errorf("%s, want %s", got, tc.krping)
		}
		if r.check = true; !strings.Contains(clientFlags(r), " --validate") {
			t.Errorf("%s does not validate", tc.test.Name())
		}
		if r.poll = false; !strings.Contains(perftestCommand(r), " -e") || strings.Contains(clientFlags(r), "--poll") {
			t.Errorf("%s polls", tc.test.Name())
		}
	}
}

func TestParseSwitches(t *testing.T) {
	const packets = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts:30\n/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts:12\n"
	switches, sum, err := parseSwitches("/proc/stat:cpu  1 2\n/proc/stat:ctxt 4711\n/proc/stat:btime 3\n" + packets)
	if err != nil || switches != 4711 || sum != 42 {
		t.Errorf("%d, %d, %v", switches, sum, err)
	}
	for _, text := range []string{"", packets, "/proc/stat:ctxt x\n" + packets} {
		if _, _, err := parseSwitches(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestTryAgain(t *testing.T) {
	rejected := errors.New("Event: RDMA_CM_EVENT_REJECTED; error: 8.")
	for _, tc := range []struct {
		errs  []error // of each try, the last one of all that follow
		calls int
	}{{[]error{nil}, 1}, {[]error{rejected, nil}, 2}, {[]error{errors.New("another")}, 1}, {[]error{rejected}, tries}} {
		calls := 0
		_, err := tryAgain(func() (int, error) {
			calls++
			return 0, tc.errs[min(calls, len(tc.errs))-1]
		})
		if last := tc.errs[len(tc.errs)-1]; calls != tc.calls || err != last {
			t.Errorf("%v: %d tries, %v", tc.errs, calls, err)
		}
	}
}
