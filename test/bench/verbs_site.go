// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"krping/test/lab"
	"krping/test/output"
)

// verbsSite is the two VMs.
type verbsSite struct {
	server, client *lab.VM
	measured       int // so far
}

const (
	firstPort, ports = 18515, 1000

	verbsTime = time.Minute     // of one measurement
	endTime   = 5 * time.Second // until the server has ended after its client
)

// tries is how often perftest may fail to connect: its client may be ready before its server listens again, after their
// first exchange by rdma_cm.
const tries = 4

// tryAgain repeats what fails to connect.
func tryAgain[R any](try func() (R, error)) (result R, err error) {
	for range tries {
		if result, err = try(); err == nil || !strings.Contains(err.Error(), "RDMA_CM_EVENT_REJECTED") {
			break
		}
	}
	return result, err
}

// measure starts a contender's server, runs its client, and ends both.
func (s *verbsSite) measure(ctx context.Context, c verbsContender, r verbsRun) (sample verbsSample, err error) {
	r.check = c.checks
	r.addr, r.port = s.server.Addr(), firstPort+s.measured%ports
	s.measured++
	ctx, cancel := context.WithTimeout(ctx, verbsTime)
	defer cancel()
	var serverOut, out, errs output.Buffer
	server, err := s.server.Start(lab.Cmd{Argv: []string{"sh", "-c", "exec " + c.server(r)}, Env: environment, Stdout: &serverOut, Stderr: &serverOut})
	if err != nil {
		return sample, err
	}
	defer func() {
		ended, end := endServer(ctx, server, c.serves || err != nil)
		sample.waiting = !ended && !c.serves
		if err == nil {
			err = end
		}
		if err != nil && !errors.Is(err, lab.ErrVMGone) {
			err = fmt.Errorf("%w\n%s\nits server: %s", err, shortened(out.String()+errs.String()), shortened(serverOut.String()))
		}
	}()
	if _, err := s.server.Output(ctx, listening(r.port, c.tcp != nil && c.tcp(r))); err != nil {
		return sample, fmt.Errorf("%s does not listen", c.server(r))
	}
	if err := s.client.Run(ctx, lab.Cmd{Argv: []string{"sh", "-c", "exec " + c.client(r)}, Env: environment, Stdout: &out, Stderr: &errs}); err != nil {
		return sample, err
	}
	return c.parse(r, out.String())
}

// listening returns a script that waits until something listens at the port. An id has that state, and the one of
// the device is made, a little before rdma_cm takes clients.
func listening(port int, tcp bool) string {
	look := fmt.Sprintf("rdma resource show cm_id | grep -q 'link rxe0.*LISTEN.*:%d '", port)
	if tcp {
		look = fmt.Sprintf("grep -q ':%04X .* 0A ' /proc/net/tcp /proc/net/tcp6", port)
	}
	return "for i in $(seq 200); do " + look + " && sleep 0.1 && exit 0; sleep 0.05; done; exit 1"
}

// endServer waits for the end of a server, or kills it: one that goes on, or that waits for a lost message.
func endServer(ctx context.Context, server *lab.Process, kill bool) (ended bool, err error) {
	limit := endTime
	if kill {
		limit = 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err = server.Wait(ctx)
	if errors.Is(err, lab.ErrVMGone) {
		return false, err
	}
	return !errors.Is(err, context.DeadlineExceeded), nil
}

func shortened(out string) string {
	out = strings.TrimSpace(out)
	if len(out) > shownOutput {
		out = "... " + out[len(out)-shownOutput:]
	}
	return out
}
