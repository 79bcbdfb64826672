// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/access"
)

// CommandError is the error of a command that failed or that the module refused.
type CommandError struct {
	Command string
	Errno   unix.Errno
	Reasons []string // its messages in the kernel log, oldest first
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Command, e.Errno)
	if len(e.Reasons) > 0 {
		text += " (" + strings.Join(e.Reasons, "; ") + ")"
	}
	return text
}

// Unwrap returns the errno, for errors.Is.
func (e *CommandError) Unwrap() error { return e.Errno }

// Outcome is the outcome of a command that has ended.
type Outcome struct {
	Messages []Message // its messages in the kernel log, oldest first
	Result   Result    // what a ping/pong command measured until it ended or failed
}

// Running is a command that was written to /proc/krping.
type Running struct {
	command Command
	mu      sync.Mutex // protects fd and last
	fd      int        // -1 after Wait
	last    Result     // the final result, read by Wait
	log     *Kmsg      // nil without permission to read it: errors then have no reasons
	thread  int
	used    time.Duration // CPU time of the thread before the command
	stop    context.CancelFunc
	done    chan struct{} // closed after errno and err are set
	errno   unix.Errno
	err     error
	cpu     time.Duration // that the command took
}

// Run writes the command to /proc/krping and waits for its end. If the command fails, the error is
// a *CommandError. When ctx ends, the command is interrupted, as by Ctrl-C.
func (f FS) Run(ctx context.Context, c Command) (Outcome, error) {
	r, err := f.Start(ctx, c)
	if err != nil {
		return Outcome{}, err
	}
	return r.Wait()
}

// Start writes the command to /proc/krping without waiting for its end. The caller must call Wait.
//
// The write runs in its own thread, with all signals blocked but one: a signal meant for another
// thread (SIGCHLD, or the runtime's own) must not interrupt the command. That one signal is sent
// to the thread to interrupt it.
func (f FS) Start(ctx context.Context, c Command) (*Running, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c, err := c.WithSourceAddress()
	if err != nil {
		return nil, err
	}
	var key access.Key
	if c.KeyFile != "" {
		if key, err = access.ReadKey(c.KeyFile); err != nil {
			return nil, err
		}
	}
	fd, err := unix.Open(f.path("krping"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrNotLoaded
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.path("krping"), Err: err}
	}
	r := &Running{command: c, fd: fd, done: make(chan struct{})}
	r.log, _ = f.OpenKmsg(true)
	ctx, r.stop = context.WithCancel(ctx)
	tid := make(chan int, 1)
	go r.write(tid, key)
	r.thread = <-tid
	go r.interruptAt(ctx)
	return r, nil
}

func (r *Running) write(tid chan<- int, key access.Key) {
	defer close(r.done)
	runtime.LockOSThread() // never unlocked: the thread ends with its signal mask and keyring
	err := blockOtherSignals()
	r.used = cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)
	tid <- unix.Gettid()
	if err != nil {
		r.err = fmt.Errorf("block signals: %w", err)
		return
	}
	if key != nil {
		if r.err = addKey(r.command.keyName(), key); r.err != nil {
			return
		}
	}
	_, err = unix.Write(r.fd, []byte(r.command.text()))
	r.errno, _ = err.(unix.Errno)
	r.cpu = cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) - r.used
}

// cpuTime returns the time of a clock of CPU time, 0 if there is no such thread any more.
func cpuTime(clock int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(clock, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// cpuSoFar returns the CPU time that the command has taken.
func (r *Running) cpuSoFar() time.Duration {
	const perThread, scheduled = 4, 2 // bits of the clock of a thread: CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED
	now := cpuTime(int32(^r.thread<<3 | perThread | scheduled))
	select {
	case <-r.done:
		return r.cpu
	default:
		return now - r.used
	}
}

// addKey adds the key to the keyring of this thread, where the module finds it. No process can
// read it there, and it vanishes when the thread ends.
func addKey(description string, key access.Key) error {
	_, err := unix.AddKey("logon", description, key, unix.KEY_SPEC_THREAD_KEYRING)
	clear(key)
	if err != nil {
		return fmt.Errorf("put the key in the thread's keyring: %w", err)
	}
	return nil
}

func (r *Running) interruptAt(ctx context.Context) {
	select {
	case <-r.done:
		return
	case <-ctx.Done():
	}
	for { // repeated, because a signal before the write has no effect
		_ = unix.Tgkill(os.Getpid(), r.thread, interrupt)
		select {
		case <-r.done:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Thread returns the id of the thread that runs the command.
func (r *Running) Thread() int { return r.thread }

// Stop interrupts the command.
func (r *Running) Stop() { r.stop() }

// Done returns a channel that is closed when the command has ended.
func (r *Running) Done() <-chan struct{} { return r.done }

// Result returns what a ping/pong command has measured so far.
func (r *Running) Result() (Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		return r.read()
	}
	if r.last.ID == 0 {
		return Result{}, errNoResult
	}
	return r.last, nil
}

func (r *Running) read() (Result, error) {
	text, err := preadAll(r.fd)
	if err != nil {
		return Result{}, fmt.Errorf("read the result: %w", err)
	}
	results, err := ParseResults(text)
	if err != nil || len(results) != 1 {
		return Result{}, errors.Join(errNoResult, err)
	}
	results[0].CPU = r.cpuSoFar()
	return results[0], nil
}

// close closes the file after reading the final result, which Result returns from then on.
func (r *Running) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	if r.command.context()&ping != 0 {
		r.last, err = r.read()
	}
	_ = unix.Close(r.fd)
	r.fd = -1
	return err
}

// Wait waits for the end of the command. It must be called once.
func (r *Running) Wait() (Outcome, error) {
	<-r.done
	r.stop()
	resultErr := r.close()
	o := Outcome{Result: r.last}
	if r.log != nil {
		o.Messages = ownMessages(r.log, r.command, r.thread)
		defer r.log.Close()
	}
	if r.err != nil {
		return o, r.err
	}
	if r.errno == 0 {
		return o, resultErr
	}
	failure := &CommandError{Command: r.command.text(), Errno: r.errno}
	for _, m := range o.Messages {
		failure.Reasons = append(failure.Reasons, m.Text)
	}
	return o, failure
}

// preadAll reads the whole file. Reading at offset 0 makes the kernel generate the text again.
func preadAll(fd int) (string, error) {
	var text []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Pread(fd, buf, int64(len(text)))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if n == 0 {
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
}

// interrupt is a real-time signal. The Go runtime installs a handler for it, which does nothing,
// and never sends it itself, unlike SIGURG.
const interrupt = unix.Signal(40)

func blockOtherSignals() error {
	var others unix.Sigset_t
	for i := range others.Val {
		others.Val[i] = ^uint64(0)
	}
	others.Val[0] &^= 1 << (interrupt - 1)
	return unix.PthreadSigmask(unix.SIG_BLOCK, &others, nil)
}

// ownMessages returns the messages about the thread's command or its volume.
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
