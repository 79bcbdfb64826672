// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// tracedTarget is krping with the target in the kernel, while a tracer of krpingctl follows its I/O.
type tracedTarget struct {
	krpingTarget
	tracer tracer
	stop   func() (lines int, err error)
	before int // I/Os of the site before it
}

// tracedPrefix is in front of the tracer's name.
const tracedPrefix = kernelTarget + "+"

// TracedContenders returns krping with each of its tracers, whose instructions are counted.
func TracedContenders() (names []string) {
	for _, tr := range tracers() {
		if tr.ours {
			names = append(names, tracedPrefix+tr.name)
		}
	}
	return names
}

// newTraced returns a contender of TracedContenders, or nil for another name.
func newTraced(name string) contender {
	for _, tr := range tracers() {
		if name == tracedPrefix+tr.name {
			return &tracedTarget{krpingTarget: krpingTarget{port: 9973, number: "-traced"}, tracer: tr}
		}
	}
	return nil
}

// isTraced tells whether a contender is one of TracedContenders.
func isTraced(name string) bool { return strings.HasPrefix(name, tracedPrefix) }

func (t *tracedTarget) name() string { return tracedPrefix + t.tracer.name }

func (t *tracedTarget) attach(ctx context.Context, s *site, disk string) (string, error) {
	device, err := t.krpingTarget.attach(ctx, s, disk)
	if err != nil {
		return "", err
	}
	if _, err := s.run(ctx, s.client, "sysctl -q net.core.bpf_jit_kallsyms=1"); err != nil {
		return "", err
	}
	t.before = s.ios
	t.stop, err = startTracer(ctx, s, t.tracer, device)
	return device, err
}

func (t *tracedTarget) detach(ctx context.Context, s *site) error {
	var err error
	if t.stop != nil {
		var lines int
		lines, err = t.stop()
		// The cost of a tracer that sees nothing does not count.
		if ios := s.ios - t.before; err == nil && t.tracer.lines && lines < ios {
			err = fmt.Errorf("%s has shown %d I/Os, want %d", t.tracer.name, lines, ios)
		}
	}
	return errors.Join(err, t.krpingTarget.detach(ctx, s))
}
