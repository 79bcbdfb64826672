// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Verb names, values of Command.Verb.
const (
	Send     = "send"
	Write    = "write"
	WriteImm = "write_imm"
	Read     = "read"
	FetchAdd = "fetch_add"
	CmpSwap  = "cmp_swap"
)

var (
	verbNames   = []string{Send, Write, WriteImm, Read, FetchAdd, CmpSwap}
	queuePairs  = []string{"rc", "uc", "ud"}
	mtus        = []uint32{0, 256, 512, 1024, 2048, 4096}
	verbsByType = map[string][]string{"rc": verbNames, "uc": {Send, Write, WriteImm}, "ud": {Send}}
)

// or returns n, or other if n is 0.
func or(n, other uint32) uint32 {
	if n == 0 {
		return other
	}
	return n
}

// checkVerbs checks which options of a verbs test are given together. The module's rules are in
// kmod/verbs/params.c; a test compares them.
func (c Command) checkVerbs() error {
	if c.Duration != 0 && (c.Duration < time.Second || c.Duration > 86400*time.Second || c.Duration.Seconds() != math.Trunc(c.Duration.Seconds())) {
		return fmt.Errorf("duration %v: must be whole seconds, 1 to 86400", c.Duration)
	}
	if c.test() != Verbs || c.context() != PingClient {
		if c.Measure != "" {
			return errors.New("bw or lat as a measure needs the test verbs")
		}
		return nil
	}
	qp := c.QPType
	if qp == "" {
		qp = "rc"
	}
	switch {
	case c.Verb == "" || c.Measure != "bw" && c.Measure != "lat":
		return errors.New("verbs needs a verb and exactly one of bw and lat")
	case !slices.Contains(verbsByType[qp], c.Verb):
		return fmt.Errorf("verb %s cannot be used with qp %s", c.Verb, qp)
	case c.Count != nil && c.Duration != 0:
		return errors.New("count cannot be used with duration: give one of them")
	}
	if name := c.unusedByLatency(); c.Measure == "lat" && name != "" {
		return fmt.Errorf("%s cannot be used with lat: one message is in flight", name)
	}
	if name := c.unusedByVerb(); name != "" {
		return fmt.Errorf("%s cannot be used with verb %s", name, c.Verb)
	}
	return c.checkVerbsNumbers(qp)
}

func (c Command) checkVerbsNumbers(qp string) error {
	size := or(c.Size, 64)
	switch {
	case c.SRQ && c.RxDepth != 0 && c.RxDepth < c.QPs:
		return fmt.Errorf("rxdepth %d: with srq it must be at least qps, which is %d", c.RxDepth, c.QPs)
	case c.Signal > or(c.TxDepth, 64):
		return fmt.Errorf("signal %d: must be at most txdepth, which is %d", c.Signal, or(c.TxDepth, 64))
	case c.Inline != 0 && c.Inline < size:
		return fmt.Errorf("inline %d: must be at least size, which is %d", c.Inline, size)
	case !slices.Contains(mtus, c.MTU):
		return fmt.Errorf("mtu %d: must be 256, 512, 1024, 2048 or 4096", c.MTU)
	case c.MTU != 0 && qp == "ud" && size > c.MTU:
		return fmt.Errorf("size %d: with qp ud it must be at most mtu, which is %d", size, c.MTU)
	case c.Validate && qp != "rc" && size < 4:
		return fmt.Errorf("size %d: validate with qp %s needs at least 4", size, qp)
	}
	return nil
}

// unusedByLatency returns an option that has no effect with lat, or "".
func (c Command) unusedByLatency() string {
	return firstGiven([]given{
		{"qps", c.QPs != 0}, {"txdepth", c.TxDepth != 0}, {"rxdepth", c.RxDepth != 0}, {"srq", c.SRQ}, {"signal", c.Signal != 0},
		{"reads", c.Reads != 0}, {"rate", c.Rate != 0}, {"duplex", c.Duplex},
	})
}

// unusedByVerb returns an option that has no effect with the verb, or "".
func (c Command) unusedByVerb() string {
	receives := c.Verb == Send || c.Verb == WriteImm
	atomic := c.Verb == FetchAdd || c.Verb == CmpSwap
	read := c.Verb == Read || atomic
	return firstGiven([]given{
		{"rxdepth", c.RxDepth != 0 && !receives}, {"srq", c.SRQ && !receives}, {"inline", c.Inline != 0 && read},
		{"reads", c.Reads != 0 && !read}, {"size", c.Size != 0 && atomic},
	})
}

type given struct {
	name  string
	given bool
}

func firstGiven(options []given) string {
	for _, o := range options {
		if o.given {
			return o.name
		}
	}
	return ""
}
