// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// VerbsTest is a test of perftest that krping has, too.
type VerbsTest struct {
	Program string // perftest's
	Verb    string // krping's name of the operation
	QP      string // type of the queue pairs: rc, uc or ud
	Latency bool
}

// VerbsTests returns all tests.
func VerbsTests() []VerbsTest {
	var tests []VerbsTest
	for _, t := range []struct{ qp, verbs string }{{"rc", "send write read"}, {"uc", "send write"}, {"ud", "send"}} {
		for _, verb := range strings.Fields(t.verbs) {
			tests = append(tests, VerbsTest{"ib_" + verb + "_bw", verb, t.qp, false}, VerbsTest{"ib_" + verb + "_lat", verb, t.qp, true})
		}
	}
	for _, verb := range []string{"fetch_add", "cmp_swap"} {
		tests = append(tests, VerbsTest{"ib_atomic_bw", verb, "rc", false}, VerbsTest{"ib_atomic_lat", verb, "rc", true})
	}
	return tests
}

// Name returns what tells the test from others: "ib_send_bw uc", "ib_atomic_bw rc fetch_add".
func (t VerbsTest) Name() string {
	if t.atomic() {
		return fmt.Sprintf("%s %s %s", t.Program, t.QP, t.Verb)
	}
	return t.Program + " " + t.QP
}

func (t VerbsTest) atomic() bool { return t.Verb == "fetch_add" || t.Verb == "cmp_swap" }

// fetches tells whether the client's device gets data: its operations are limited by outstanding READs.
func (t VerbsTest) fetches() bool { return t.Verb == "read" || t.atomic() }

const pathMTU = 4096 // of Soft-RoCE in the lab: a UD message must fit

// sizes returns those of the sizes that the test can have. Atomics always have 8 bytes.
func (t VerbsTest) sizes(all []int) []int {
	if t.atomic() {
		return []int{8}
	}
	return slices.DeleteFunc(slices.Clone(all), func(size int) bool { return t.QP == "ud" && size > pathMTU })
}

// count returns the messages of one measurement, which takes a second or few in an emulated VM.
func (t VerbsTest) count(size int) int {
	if t.Latency {
		return min(max(16<<20/size, 40), 500)
	}
	return min(max(32<<20/size, 64), 4096)
}

// depth returns the messages in flight of a bandwidth test: perftest's default, and less for large ones.
func depth(size int) int { return min(128, 16<<20/size) }

// sharing returns how many messages share a completion in a bandwidth test.
func sharing(size int) int { return depth(size) / 4 }

// Both of all contenders: perftest's default of receives, and krping's of outstanding READs and atomics.
const receives, outstanding = 512, 16

// unit returns the unit of the report: perftest prints few digits of a rate of large, or a bandwidth of small messages.
func (t VerbsTest) unit(size int) string {
	switch {
	case t.Latency:
		return "µs"
	case size < 4096:
		return "messages/s"
	}
	return "Gbit/s"
}

// MatchingVerbsTests returns the tests whose name matches a regular expression.
func MatchingVerbsTests(pattern string) ([]VerbsTest, error) {
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(VerbsTests(), func(t VerbsTest) bool { return !matches.MatchString(t.Name()) }), nil
}

// VerbsSizes are the default sizes.
const VerbsSizes = "2,64,1024,4096,65536,1048576"

// ParseSizes returns the numbers of bytes in a comma-separated list, which may be empty.
func ParseSizes(list string) ([]int, error) {
	var sizes []int
	if list == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1<<20 {
			return nil, fmt.Errorf("%q: must be 1 to 1048576 bytes, as in %s", text, VerbsSizes)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}
