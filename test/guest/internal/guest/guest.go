// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package guest is what the suites share that run inside a VM of the lab.
package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/internal/halt"
	"krping/test/internal/late"
	"krping/test/output"
)

// Addr returns the guest's own IPv4 address, which its RDMA device serves.
func Addr(t testing.TB) string { return env(t, "KRPING_ADDR") }

// Binary returns the path of a program of the build.
func Binary(t testing.TB, name string) string {
	return filepath.Join(env(t, "KRPING_BUILD"), name)
}

// Module returns the path of rdma_krping.ko for the running kernel.
func Module(t testing.TB) string { return env(t, "KRPING_KMOD") }

// Device returns the name of the guest's RDMA device, which is that of its driver with a 0.
func Device(t testing.TB) string { return env(t, "KRPING_DEVICE") }

// IWARP says whether the device is of iWARP, not of RoCE.
func IWARP(t testing.TB) bool { return strings.HasPrefix(Device(t), "siw") }

// RegionPages is how many pages of 4096 bytes a memory region of the device holds.
func RegionPages(t testing.TB) int {
	t.Helper()
	if IWARP(t) {
		return 256
	}
	return 512
}

// Slow stretches a limit on a kernel that is slow because it looks for mistakes.
func Slow(limit time.Duration) time.Duration {
	if factor, err := strconv.Atoi(os.Getenv("KRPING_SLOW")); err == nil && factor > 1 {
		return limit * time.Duration(factor)
	}
	return limit
}

func env(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: this suite runs inside a VM of the lab", name)
	}
	return value
}

var catchSignals sync.Once

// Command writes one command to /proc/krping and returns its errno, or nil. After
// limit the writing thread gets a signal, as Ctrl-C would send it.
func Command(command string, limit time.Duration) error {
	catchSignals.Do(func() { signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1) })
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	fd, err := unix.Open("/proc/krping", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	stopped := make(chan struct{})
	go func(tid int) {
		defer close(stopped)
		<-ctx.Done()
		for errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGUSR1)
			time.Sleep(20 * time.Millisecond)
			if !threadInWrite(tid) {
				return
			}
		}
	}(unix.Gettid())
	// Any other signal to the process, SIGCHLD or the runtime's own, would end the command.
	var others, before unix.Sigset_t
	for i := range others.Val {
		others.Val[i] = ^uint64(0)
	}
	others.Val[0] &^= 1 << (unix.SIGUSR1 - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &others, &before); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(command))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	cancel()
	<-stopped
	return err
}

// EndsWith checks that a command has ended as it should: in one of some ways.
func EndsWith(t testing.TB, err error, want []error) {
	t.Helper()
	if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		t.Errorf("the command ended with %v, want %v", err, want)
	}
}

// threadInWrite says whether the thread is still in write(2), system call 1.
func threadInWrite(tid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", tid))
	return err == nil && bytes.HasPrefix(data, []byte("1 "))
}

// Start runs a program in the background and kills it at the end of the test.
func Start(t testing.TB, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = testWriter{t}, testWriter{t}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", argv, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// Signal sends a signal to a program that runs. One that is told to stop has stopped when Signal returns.
func Signal(t testing.TB, cmd *exec.Cmd, sig unix.Signal) {
	t.Helper()
	send := func() error { return cmd.Process.Signal(sig) }
	if sig == unix.SIGSTOP {
		send = func() error { return halt.Stop(cmd.Process, Limit) }
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
}

// Run runs a program to its end and returns its output; a failure ends the test.
func Run(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := TryRun(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryRun runs a program to its end, at most two minutes (Slow), and returns its output.
func TryRun(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Slow(2*time.Minute))
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

// Eventually polls until the condition holds; after limit (Slow) the test fails.
func Eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(Slow(limit)); time.Now().Before(deadline); {
		if condition() {
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, 20*time.Millisecond)
	}
	late.Waited(t, limit, "%s%s", what, BlockedTasks())
}

// Within returns what is delivered; after limit (Slow) the test fails.
func Within[T any](t testing.TB, limit time.Duration, what string, delivered <-chan T) (value T) {
	t.Helper()
	limit = Slow(limit)
	select {
	case value = <-delivered:
	case <-time.After(limit):
		t.Fatalf("not within %v: %s%s", limit, what, BlockedTasks())
	}
	return value
}

// BlockedTasks returns the kernel stacks of the tasks that sleep uninterruptibly, or within the
// module, each beginning with a new line, or "".
func BlockedTasks() string {
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*") // fails for bad patterns only
	var report strings.Builder
	for _, task := range tasks {
		status, err := os.ReadFile(task + "/status")
		if err != nil {
			continue // it has ended
		}
		stack, err := os.ReadFile(task + "/stack")
		if err != nil {
			stack = []byte(err.Error())
		}
		if !strings.Contains(string(status), "\nState:\tD") && !bytes.Contains(stack, []byte("[rdma_krping]")) {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(string(status), "Name:\t"), "\n")
		fmt.Fprintf(&report, "\n%s (%s) is blocked:\n%s", name, filepath.Base(task), bytes.TrimRight(stack, "\n"))
	}
	return report.String()
}

// Threads returns the lines of /proc/krping: the running ping/pong threads.
func Threads(t testing.TB) []string { return lines(t, "/proc/krping") }

// Limit is how long a command of a test may take.
var Limit = Slow(time.Minute)

// StartServer runs a ping/pong server command in the background and waits until it listens;
// its result is delivered once. One at a time.
func StartServer(t testing.TB, command string) <-chan error {
	t.Helper()
	before := map[uint32]bool{}
	for _, l := range Listeners(t) {
		before[l.Number] = true
	}
	done := make(chan error, 1)
	go func() { done <- Command(command, Limit) }()
	// /proc/krping lists a thread before it listens.
	Eventually(t, 20*time.Second, "the server listens", func() bool {
		return len(done) > 0 || slices.ContainsFunc(Listeners(t), func(l Listener) bool { return l.Module == "rdma_krping" && !before[l.Number] })
	})
	return done
}

// StartRping starts a server of rping and waits until it listens.
func StartRping(t testing.TB, addr string, port int, more ...string) *exec.Cmd {
	t.Helper()
	rping := Start(t, append([]string{"rping", "-s", "-a", addr, "-p", strconv.Itoa(port)}, more...)...)
	Eventually(t, 20*time.Second, "rping listens", func() bool { return Listens(t, port) })
	return rping
}

// NoThreads waits until what earlier commands began has ended.
func NoThreads(t testing.TB) {
	t.Helper()
	Eventually(t, 20*time.Second, "no thread is left", func() bool { return len(Threads(t)) == 0 })
}

// Session returns the key=value pairs of the client's block session of that name, or nil.
func Session(t testing.TB, name string) map[string]string {
	t.Helper()
	return session(t, name, "client")
}

// SessionBecomes waits until vol0's block session is in that state.
func SessionBecomes(t testing.TB, state string) {
	t.Helper()
	Eventually(t, 20*time.Second, "the session is "+state, func() bool { return Session(t, "vol0")["state"] == state })
}

// Volume returns the key=value pairs of the named volume that this kernel serves, or nil.
func Volume(t testing.TB, name string) map[string]string {
	t.Helper()
	return session(t, name, "target")
}

func session(t testing.TB, name, role string) map[string]string {
	t.Helper()
	for _, line := range lines(t, "/proc/krping_sessions") {
		pairs := map[string]string{}
		for _, field := range strings.Fields(line) {
			key, value, _ := strings.Cut(field, "=")
			pairs[key] = value
		}
		if pairs["name"] == name && pairs["role"] == role {
			return pairs
		}
	}
	return nil
}

// Number returns what a file of sysfs or debugfs holds.
func Number(t testing.TB, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func lines(t testing.TB, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

// Bridge is a running krping-bridge with one file-backed volume, vol0, or one that answers pings.
type Bridge struct {
	Cmd   *exec.Cmd
	Addr  string
	Store string         // path of the volume's file
	Log   *output.Buffer // all that it has said
}

// StorePath returns where a test may keep the file of vol0.
func StorePath(t testing.TB) string { return filepath.Join(t.TempDir(), "vol0.img") }

// StartBridge starts krping-bridge on the guest's address and waits until it listens.
// More arguments may add to or replace the volume's.
func StartBridge(t testing.TB, port int, store, size string, args ...string) *Bridge {
	t.Helper()
	return startVolume(t, "krping-bridge", nil, port, store, size, args...)
}

// StartFaultyBridge starts a bridge whose faults have their knobs (package bridge/fault) in a directory.
func StartFaultyBridge(t testing.TB, port int, knobs, store, size string) *Bridge {
	t.Helper()
	return startVolume(t, "krping-bridge-faults", []string{"KRPING_FAULTS=" + knobs}, port, store, size)
}

func startVolume(t testing.TB, program string, env []string, port int, store, size string, args ...string) *Bridge {
	t.Helper()
	b := &Bridge{Addr: fmt.Sprintf("%s:%d", Addr(t), port), Store: store}
	b.Cmd = exec.Command(Binary(t, program), append([]string{"--listen", b.Addr, "--store", "file:" + store, "--size", size}, args...)...)
	b.Cmd.Env = append(os.Environ(), env...)
	b.Log = startBridge(t, b.Cmd, "listening on")
	return b
}

// Rejected returns how many clients the bridge has refused: it says that when it gets SIGUSR1.
func (b *Bridge) Rejected(t testing.TB) int {
	t.Helper()
	const counter = "clients rejected="
	said := strings.Count(b.Log.String(), counter)
	Signal(t, b.Cmd, unix.SIGUSR1)
	Eventually(t, 5*time.Second, "the bridge says its counters", func() bool { return strings.Count(b.Log.String(), counter) > said })
	log := b.Log.String()
	last, _, _ := strings.Cut(log[strings.LastIndex(log, counter)+len(counter):], "\n")
	n, err := strconv.Atoi(last)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Kill kills the bridge as kill -9 does and waits until it is gone.
func (b *Bridge) Kill() {
	_ = b.Cmd.Process.Kill()
	_ = b.Cmd.Wait()
}

// Attach makes the block device of vol0 and stops it at the end of the test. More options
// are in the module's grammar, each with a comma in front.
func Attach(t testing.TB, port int, options string) string {
	t.Helper()
	if err := Command(fmt.Sprintf("client,addr=%s,port=%d,block=vol0%s", Addr(t), port, options), Limit); err != nil {
		t.Fatalf("attach vol0: %v", err)
	}
	t.Cleanup(func() {
		if Session(t, "vol0") == nil {
			return
		}
		if err := Command("stop,block=vol0,force", Limit); err != nil {
			t.Errorf("stop vol0: %v", err)
		}
	})
	return "/dev/" + Session(t, "vol0")["dev"]
}

// StartPingBridge starts krping-bridge as a ping/pong server on the guest's address, and waits
// until it listens.
func StartPingBridge(t testing.TB, port int, args ...string) *Bridge {
	t.Helper()
	b := &Bridge{Addr: fmt.Sprintf("%s:%d", Addr(t), port)}
	b.Cmd = exec.Command(Binary(t, "krping-bridge"), append([]string{"--ping", b.Addr}, args...)...)
	b.Log = startBridge(t, b.Cmd, "answering pings")
	return b
}

// startBridge starts krping-bridge, waits until it says that it is ready, and kills it at the
// end of the test. It returns all that the bridge says.
func startBridge(t testing.TB, cmd *exec.Cmd, ready string) *output.Buffer {
	t.Helper()
	var out output.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&out, testWriter{t})
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", cmd.Args, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	Eventually(t, 20*time.Second, "krping-bridge is "+ready, func() bool { return strings.Contains(out.String(), ready) })
	return &out
}
