// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"krping/test/lab"
	"krping/test/output"
)

// A contender makes a disk of the serving VM available as a block device in the measuring VM.
type contender interface {
	name() string
	about() string // how it is set up, for the report
	// attach returns the device, such as /dev/nvme0n1.
	attach(ctx context.Context, s *site, disk string) (device string, err error)
	// detach undoes attach, even if that failed half-way.
	detach(ctx context.Context, s *site) error
}

// Names of the contenders, in the order of the report.
const (
	kernelTarget = "krping"
	bridgeTarget = "krping-bridge"
	nvmeRDMA     = "nvme-rdma"
	nvmeTCP      = "nvme-tcp"
	nbd          = "nbd"
	rawVerbs     = "verbs"
)

// ContenderNames returns all contenders.
func ContenderNames() []string {
	return []string{kernelTarget, bridgeTarget, nvmeRDMA, nvmeTCP, nbd, rawVerbs}
}

// newContender returns a contender, or nil for raw verbs. Each has its own port, as all exist at once.
func newContender(name string) contender {
	switch name {
	case kernelTarget:
		return &krpingTarget{port: 9971}
	case bridgeTarget:
		return &krpingBridge{port: 9972}
	case nvmeRDMA:
		return &nvme{transport: "rdma", port: 4420}
	case nvmeTCP:
		return &nvme{transport: "tcp", port: 4421}
	case nbd:
		return &networkBlock{port: 10809}
	}
	return newTraced(name)
}

// site is the two VMs.
type site struct {
	server, client *lab.VM
	log            io.Writer
	polls          bool // contenders that can have a poll queue
	queues         int  // of a disk of krping or nvme; 0: one per CPU
	ios            int  // that were counted
}

const (
	commandTime = 90 * time.Second // of a set-up command in an emulated VM
	pollTime    = 50 * time.Millisecond
)

var environment = []string{"PATH=" + lab.Build() + ":/usr/sbin:/usr/bin:/sbin:/bin"}

// run runs a script to its end. Its error names the host, the script and what it printed.
func (s *site) run(ctx context.Context, vm *lab.VM, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	var out output.Buffer
	err := vm.Run(ctx, lab.Cmd{Argv: []string{"sh", "-ec", script}, Env: environment, Stdout: &out, Stderr: &out})
	if err != nil {
		return out.String(), failure(vm, script, out.String(), err)
	}
	return out.String(), nil
}

const shownOutput = 2000 // bytes of a command's output in an error

func failure(vm *lab.VM, script, out string, err error) error {
	out = strings.TrimSpace(out)
	if len(out) > shownOutput {
		out = "... " + out[len(out)-shownOutput:]
	}
	return &commandError{host: vm.Addr(), script: strings.TrimSpace(script), out: out, err: err}
}

// commandError is the failure of a contender's command.
type commandError struct {
	host, script, out string
	err               error
}

func (e *commandError) Error() string {
	return fmt.Sprintf("%s# %s\n%s\n(%s)", e.host, e.script, e.out, reason(e.err))
}

func (e *commandError) Unwrap() error { return e.err }

// reason returns the error without the command, which commandError names itself.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}

// spawn starts a program that keeps running, and waits until its output contains the text.
func (s *site) spawn(ctx context.Context, vm *lab.VM, command, text string) (*lab.Process, *output.Buffer, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	out := &output.Buffer{}
	p, err := vm.Start(lab.Cmd{Argv: []string{"sh", "-c", "exec " + command}, Env: environment, Stdout: out, Stderr: out})
	if err != nil {
		return nil, nil, failure(vm, command, "", err)
	}
	for !strings.Contains(out.String(), text) {
		select {
		case <-p.Done():
			return nil, nil, failure(vm, command, out.String(), fmt.Errorf("it has ended: %w", p.Wait(ctx)))
		case <-ctx.Done():
			_ = p.Wait(ctx) // kills it
			return nil, nil, failure(vm, command, out.String(), ctx.Err())
		case <-time.After(pollTime):
		}
	}
	return p, out, nil
}
