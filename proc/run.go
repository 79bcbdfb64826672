// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CommandError is a command that the module refused or that failed.
type CommandError struct {
	Command string
	Errno   unix.Errno
	Reasons []string // what the kernel log said about it, oldest first
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Command, e.Errno)
	if len(e.Reasons) > 0 {
		text += " (" + strings.Join(e.Reasons, "; ") + ")"
	}
	return text
}

// Unwrap returns the errno, so that errors.Is works with it.
func (e *CommandError) Unwrap() error { return e.Errno }

// Run writes the command to /proc/krping and returns when it has ended, with what the
// kernel log said about it; the error of a failed one is a *CommandError. When ctx ends,
// the command is interrupted as Ctrl-C would.
//
// The write blocks a thread of its own on which all signals are blocked but one, so that
// a signal that is meant for another thread (SIGCHLD, the runtime's own) does not
// interrupt the command; to interrupt it, that one is sent to the thread.
func (f FS) Run(ctx context.Context, c Command) ([]Message, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	log, logErr := f.OpenKmsg(true) // without it a failure has no reason, but still an errno
	if logErr == nil {
		defer log.Close()
	}
	thread, errno, err := f.write(ctx, c.text())
	if err != nil {
		return nil, err
	}
	var messages []Message
	if logErr == nil {
		messages = ownMessages(log, c, thread)
	}
	if errno == 0 {
		return messages, nil
	}
	failure := &CommandError{Command: c.text(), Errno: errno}
	for _, m := range messages {
		failure.Reasons = append(failure.Reasons, m.Text)
	}
	return messages, failure
}

// write returns the id of the thread that wrote, which tags the module's messages.
func (f FS) write(ctx context.Context, text string) (thread int, errno unix.Errno, err error) {
	fd, err := unix.Open(f.path("krping"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return 0, 0, ErrNotLoaded
	}
	if err != nil {
		return 0, 0, &os.PathError{Op: "open", Path: f.path("krping"), Err: err}
	}
	defer unix.Close(fd)

	type result struct {
		errno unix.Errno
		err   error
	}
	done := make(chan result, 1)
	tid := make(chan int, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its mask
		tid <- unix.Gettid()
		if err := blockOtherSignals(); err != nil {
			done <- result{err: fmt.Errorf("block signals: %w", err)}
			return
		}
		_, err := unix.Write(fd, []byte(text))
		errno, _ := err.(unix.Errno)
		done <- result{errno: errno}
	}()
	thread = <-tid
	select {
	case r := <-done:
		return thread, r.errno, r.err
	case <-ctx.Done():
	}
	for { // again, should the signal come just before the write
		_ = unix.Tgkill(os.Getpid(), thread, interrupt)
		select {
		case r := <-done:
			return thread, r.errno, r.err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// interrupt is handled by the Go runtime in every thread and harmless there.
const interrupt = unix.SIGURG

func blockOtherSignals() error {
	var others unix.Sigset_t
	for i := range others.Val {
		others.Val[i] = ^uint64(0)
	}
	others.Val[0] &^= 1 << (interrupt - 1)
	return unix.PthreadSigmask(unix.SIG_BLOCK, &others, nil)
}

// ownMessages returns what the log has about the thread's command or its volume.
func ownMessages(log *Kmsg, c Command, thread int) []Message {
	var own []Message
	for {
		m, err := log.Next(context.Background())
		if err != nil {
			return own
		}
		if m.PID == thread || c.Block != "" && m.Subject == c.Block {
			own = append(own, m)
		}
	}
}
