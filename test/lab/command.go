// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"krping/test/output"
)

// Cmd is a command to run in a guest.
type Cmd struct {
	Argv           []string
	Env            []string // KEY=VALUE, added to the guest's environment
	Dir            string
	Stdout, Stderr io.Writer // nil: discarded
}

// ExitError is a non-zero exit status of a command.
type ExitError struct {
	Argv []string
	Code int // 128 + the signal if it was killed
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit status %d", strings.Join(e.Argv, " "), e.Code)
}

// ErrVMGone is the error of a command whose VM has ended.
var ErrVMGone = errors.New("the VM is gone")

// Process is a command that runs in a guest.
type Process struct {
	argv   []string
	conn   net.Conn
	stream Stream
	mu     sync.Mutex
	done   chan struct{}
	err    error
}

// Start starts a command.
func (vm *VM) Start(cmd Cmd) (*Process, error) {
	conn, err := vm.session.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrVMGone, err)
	}
	p := &Process{argv: cmd.Argv, conn: conn, stream: NewStream(conn), done: make(chan struct{})}
	if err := p.stream.Encode(Request{Argv: cmd.Argv, Env: cmd.Env, Dir: cmd.Dir}); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrVMGone, err)
	}
	go p.follow(cmd)
	return p, nil
}

func (p *Process) follow(cmd Cmd) {
	defer close(p.done)
	defer p.conn.Close()
	for {
		var msg FromGuest
		if err := p.stream.Decode(&msg); err != nil {
			p.err = fmt.Errorf("%s: %w", strings.Join(p.argv, " "), ErrVMGone)
			return
		}
		if cmd.Stdout != nil && len(msg.Stdout) > 0 {
			_, _ = cmd.Stdout.Write(msg.Stdout)
		}
		if cmd.Stderr != nil && len(msg.Stderr) > 0 {
			_, _ = cmd.Stderr.Write(msg.Stderr)
		}
		if !msg.Ended {
			continue
		}
		switch {
		case msg.Err != "":
			p.err = fmt.Errorf("start %s: %s", strings.Join(p.argv, " "), msg.Err)
		case msg.Code != 0:
			p.err = &ExitError{p.argv, msg.Code}
		}
		return
	}
}

// Signal sends a signal to the command's process group.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream.Encode(ToGuest{Signal: int(sig)})
}

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the command ended: nil, an *ExitError, or ErrVMGone. If ctx ends
// first, the command is killed.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		_ = p.conn.Close() // the agent kills it
		return fmt.Errorf("%s: killed: %w", strings.Join(p.argv, " "), ctx.Err())
	}
}

// Run runs a command to its end.
func (vm *VM) Run(ctx context.Context, cmd Cmd) error {
	p, err := vm.Start(cmd)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Output runs a shell command and returns what it printed on both streams.
func (vm *VM) Output(ctx context.Context, script string) (string, error) {
	var out output.Buffer
	err := vm.Run(ctx, Cmd{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	return out.String(), err
}

// blockedLimit is how long to wait for the answer of a VM that may hang.
const blockedLimit = 30 * time.Second

// Blocked returns the kernel stacks of the tasks that sleep uninterruptibly.
func (vm *VM) Blocked() string {
	ctx, cancel := context.WithTimeout(context.Background(), blockedLimit)
	defer cancel()
	out, err := vm.Output(ctx, `for f in $(grep -ls '^State:.D' /proc/[0-9]*/task/*/status); do echo; cat ${f%status}comm ${f%status}stack; done`)
	if err != nil {
		out += err.Error()
	}
	return out
}

func lockThread() { runtime.LockOSThread() }
