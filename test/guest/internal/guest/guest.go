// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package guest has what the suites inside a VM of the lab share.
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
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/internal/halt"
	"krping/test/internal/late"
	"krping/test/output"
)

// Addr returns the IPv4 address of the guest and its RDMA device.
func Addr(t testing.TB) string { return env(t, "KRPING_ADDR") }

// Binary returns the path of a program of the build.
func Binary(t testing.TB, name string) string {
	return filepath.Join(env(t, "KRPING_BUILD"), name)
}

// Module returns the path of rdma_krping.ko for the running kernel.
func Module(t testing.TB) string { return env(t, "KRPING_KMOD") }

// Device returns the name of the guest's RDMA device: its driver's and 0.
func Device(t testing.TB) string { return env(t, "KRPING_DEVICE") }

// IWARP says whether the device is an iWARP device, not a RoCE device.
func IWARP(t testing.TB) bool { return strings.HasPrefix(Device(t), "siw") }

var ports atomic.Int32

// NextPort returns a port that no test has used before: clients of an earlier test may still connect to theirs.
func NextPort() int { return 13000 + int(ports.Add(1)) }

// RegionPages returns the number of pages of 4096 bytes in a memory region of the device.
func RegionPages(t testing.TB) int {
	t.Helper()
	if IWARP(t) {
		return 256
	}
	return 512
}

// Slow lengthens a time limit on debug kernels.
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

// Command writes a command to /proc/krping and returns its errno, or nil. After limit the writing thread
// gets a signal, as if by Ctrl-C.
func Command(command string, limit time.Duration) error {
	fd, err := unix.Open("/proc/krping", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write(fd, command, limit)
}

// write is Command with a file descriptor of /proc/krping.
func write(fd int, command string, limit time.Duration) error {
	catchSignals.Do(func() { signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1) })
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

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
	// Block other signals, such as SIGCHLD and the runtime's own: they would end the command.
	var others, before unix.Sigset_t
	for i := range others.Val {
		others.Val[i] = ^uint64(0)
	}
	others.Val[0] &^= 1 << (unix.SIGUSR1 - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &others, &before); err != nil {
		return err
	}
	_, err := unix.Write(fd, []byte(command))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	cancel()
	<-stopped
	return err
}

// EndsWith checks that err is one of the wanted errors.
func EndsWith(t testing.TB, err error, want []error) {
	t.Helper()
	if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		t.Errorf("got error %v, want one of %v", err, want)
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

// Signal sends a signal to a running program. After SIGSTOP it waits until the program has stopped.
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

// Run runs a program and returns its output. If it fails, the test fails.
func Run(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := TryRun(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryRun runs a program for at most two minutes (Slow) and returns its output.
func TryRun(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Slow(2*time.Minute))
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

// TraceStarts is more than top, trace and the agent take to load their eBPF program: in an emulated CPU beside
// other VMs, the kernel's verifier takes up to a minute.
const TraceStarts = 3 * time.Minute

// Eventually polls until the condition holds. After limit (late.Limit, Slow) the test fails.
func Eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	limit = late.Limit(limit)
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

// Within returns the value from a channel. After limit (late.Limit, Slow) the test fails.
func Within[T any](t testing.TB, limit time.Duration, what string, delivered <-chan T) (value T) {
	t.Helper()
	limit = late.Limit(limit)
	select {
	case value = <-delivered:
	case <-time.After(Slow(limit)):
		late.Waited(t, limit, "%s%s", what, BlockedTasks())
	}
	return value
}

// BlockedTasks returns the kernel stacks of all tasks in uninterruptible sleep or inside the module, each after a
// newline.
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

// Limit is the time limit for a command.
var Limit = Slow(time.Minute)

// StartServer runs a ping/pong server command in the background, waits until it listens, and delivers its result once.
//
// It reads the state from /proc/krping: the kernel lists a CM id as listening before clients find it.
func StartServer(t testing.TB, command string) <-chan error {
	t.Helper()
	fd, err := unix.Open("/proc/krping", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	done, written := make(chan error, 1), make(chan struct{})
	go func() {
		done <- write(fd, command, Limit)
		close(written)
	}()
	Eventually(t, 20*time.Second, "the server listens", func() bool {
		line := make([]byte, 4096)
		n, err := unix.Pread(fd, line, 0)
		if err != nil {
			t.Fatalf("read the server's state: %v", err)
		}
		return len(done) > 0 || bytes.Contains(line[:n], []byte(" role=server ")) && !bytes.Contains(line[:n], []byte(" state=connecting "))
	})
	go func() {
		<-written
		_ = unix.Close(fd)
	}()
	return done
}

// StartRping starts a server of rping and waits until it listens.
func StartRping(t testing.TB, addr string, port int, more ...string) *exec.Cmd {
	t.Helper()
	rping := Start(t, append([]string{"rping", "-s", "-a", addr, "-p", strconv.Itoa(port)}, more...)...)
	Eventually(t, 20*time.Second, "rping listens", func() bool { return Listens(t, port) })
	return rping
}

// NoThreads waits until all threads of earlier commands have ended.
func NoThreads(t testing.TB) {
	t.Helper()
	Eventually(t, 20*time.Second, "no thread is left", func() bool { return len(Threads(t)) == 0 })
}

// Session returns the key=value pairs of the client's session of that name, or nil.
func Session(t testing.TB, name string) map[string]string {
	t.Helper()
	return session(t, name, "client")
}

// SessionBecomes waits until vol0's session is in that state.
func SessionBecomes(t testing.TB, state string) {
	t.Helper()
	Eventually(t, 20*time.Second, "the session is "+state, func() bool { return Session(t, "vol0")["state"] == state })
}

// VolumeBecomes waits until the module's vol0 is in that state.
func VolumeBecomes(t testing.TB, state string) {
	t.Helper()
	Eventually(t, 10*time.Second, "the volume is "+state, func() bool { return Volume(t, "vol0")["state"] == state })
}

// Volume returns the key=value pairs of the module's volume of that name, or nil.
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

// WantFields checks key=value pairs of a session or volume.
func WantFields(t testing.TB, fields map[string]string, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if key, want := pairs[i], pairs[i+1]; fields[key] != want {
			t.Errorf("%s=%s, want %s", key, fields[key], want)
		}
	}
}

// Number returns the number in a file of sysfs or debugfs.
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

// Bridge is a running krping-bridge that serves vol0 from a file, or answers pings.
type Bridge struct {
	Cmd   *exec.Cmd
	Addr  string
	Store string         // path of the volume's file
	Log   *output.Buffer // its output
}

// StorePath returns a path for the file of vol0.
func StorePath(t testing.TB) string { return filepath.Join(t.TempDir(), "vol0.img") }

// CreateStore creates the file of a volume, unless it exists.
func CreateStore(t testing.TB, path, size string) {
	t.Helper()
	if _, err := os.Stat(path); err == nil {
		return
	}
	Run(t, Binary(t, "krping-bridge"), "create", "--store", "file:"+path, "--size", size)
}

// StartBridge starts krping-bridge on the guest's address and waits until it listens. It creates the store if it does
// not exist. More arguments can add options or override them.
func StartBridge(t testing.TB, port int, store, size string, args ...string) *Bridge {
	t.Helper()
	return startVolume(t, "krping-bridge", nil, port, store, size, args...)
}

// StartFaultyBridge starts a bridge with fault injection, which is controlled by files (package bridge/fault) in knobs.
func StartFaultyBridge(t testing.TB, port int, knobs, store, size string, args ...string) *Bridge {
	t.Helper()
	return startVolume(t, "krping-bridge-faults", []string{"KRPING_FAULTS=" + knobs}, port, store, size, args...)
}

func startVolume(t testing.TB, program string, env []string, port int, store, size string, args ...string) *Bridge {
	t.Helper()
	b := &Bridge{Addr: AddrPort(t, port), Store: store}
	if !slices.Contains(args, "--listen") {
		args = append(args, "--listen", b.Addr)
	}
	if !slices.Contains(args, "--store") {
		CreateStore(t, store, size)
		args = append(args, "--store", "file:"+store)
	}
	b.Cmd = exec.Command(Binary(t, program), append([]string{"--size", size}, args...)...)
	b.Cmd.Env = append(os.Environ(), env...)
	b.Start(t, "listening on")
	return b
}

// AddrPort returns the guest's address with a port.
func AddrPort(t testing.TB, port int) string { return fmt.Sprintf("%s:%d", Addr(t), port) }

// Rejected returns how many clients the bridge has rejected. The bridge logs that on SIGUSR1.
func (b *Bridge) Rejected(t testing.TB) int {
	t.Helper()
	const counter = "clients rejected="
	said := strings.Count(b.Log.String(), counter)
	Signal(t, b.Cmd, unix.SIGUSR1)
	Eventually(t, 5*time.Second, "the bridge logs its counters", func() bool { return strings.Count(b.Log.String(), counter) > said })
	log := b.Log.String()
	last, _, _ := strings.Cut(log[strings.LastIndex(log, counter)+len(counter):], "\n")
	n, err := strconv.Atoi(last)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Kill kills the bridge with SIGKILL and waits for its end.
func (b *Bridge) Kill() {
	_ = b.Cmd.Process.Kill()
	_ = b.Cmd.Wait()
}

// Attach attaches vol0 until the end of the test and returns its device. More options are written as in the module's
// commands, each after a comma.
func Attach(t testing.TB, port int, options string) string {
	t.Helper()
	if err := Command(fmt.Sprintf("client,addr=%s,port=%d,block=vol0%s", Addr(t), port, options), Limit); err != nil {
		mark := "" // a target that is silent for most of heartbeat= is lost, also while the disk is added
		if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.ETIMEDOUT) {
			mark = late.Mark
		}
		t.Fatalf("%sattach vol0: %v", mark, err)
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

// NoReconnects checks that a session is live and has never lost its target. A target without a processor for most of
// heartbeat= is lost, so that counts as late.
func NoReconnects(t testing.TB, session string) {
	t.Helper()
	if s := Session(t, session); s["state"] != "live" || s["reconnects"] != "0" {
		late.Errorf(t, "session %s is %s after %s reconnects, want live after none", session, s["state"], s["reconnects"])
	}
}

// StartPingBridge starts krping-bridge as a ping/pong server on the guest's address, or on the one of a --ping in
// args, and waits until it listens.
func StartPingBridge(t testing.TB, port int, args ...string) *Bridge {
	t.Helper()
	b := &Bridge{Addr: AddrPort(t, port)}
	if !slices.Contains(args, "--ping") {
		args = append(args, "--ping", b.Addr)
	}
	b.Cmd = exec.Command(Binary(t, "krping-bridge"), args...)
	b.Start(t, "answering pings")
	return b
}

// StartFaultyPingBridge is StartPingBridge for a build with fault injection: see StartFaultyBridge.
func StartFaultyPingBridge(t testing.TB, port int, knobs string) *Bridge {
	t.Helper()
	b := &Bridge{Addr: AddrPort(t, port)}
	b.Cmd = exec.Command(Binary(t, "krping-bridge-faults"), "--ping", b.Addr)
	b.Cmd.Env = append(os.Environ(), "KRPING_FAULTS="+knobs)
	b.Start(t, "answering pings")
	return b
}

// Start starts the bridge of Cmd, waits until its output contains ready, and kills it at the end of the test.
func (b *Bridge) Start(t testing.TB, ready string) {
	t.Helper()
	b.Log = new(output.Buffer)
	b.Cmd.Stdout, b.Cmd.Stderr = b.Log, io.MultiWriter(b.Log, testWriter{t})
	if err := b.Cmd.Start(); err != nil {
		t.Fatalf("start %v: %v", b.Cmd.Args, err)
	}
	t.Cleanup(func() {
		_ = b.Cmd.Process.Kill()
		_ = b.Cmd.Wait()
	})
	Eventually(t, 20*time.Second, "krping-bridge is "+ready, func() bool { return strings.Contains(b.Log.String(), ready) })
}
