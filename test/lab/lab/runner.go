// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"krping/test/internal/needs"
	"krping/test/lab"
)

const (
	suiteTimeout = 20 * time.Minute // of one suite on a busy machine; more on a slow kernel
	reportTime   = time.Minute      // for a suite to report where it hung
	checkLines   = 40               // of a failed check's output that are printed
)

// runner makes jobs of suites and checks, and keeps their results for the summary.
type runner struct {
	options suiteOptions
	pool    *pool
}

// trial is one run of a suite.
type trial struct {
	machine
	options suiteOptions
	dir     string
	list    []needs.Need
	pattern string
	out     string // directory of logs
	tally   *tally
}

func (t *trial) timeout() time.Duration {
	return suiteTimeout*time.Duration(t.slow) + t.options.soak
}

// errTests means that a suite ran to its end and that tests failed.
var errTests = errors.New("tests failed or were skipped")

// job returns the run of a suite on a machine.
func (r *runner) job(m machine, dir string, list []needs.Need) job {
	j := job{name: fmt.Sprintf("%s on %s", suiteName(dir), m), places: 1, expect: expected(resultName(dir, m))}
	if slices.Contains(list, needs.TwoHosts) {
		j.places = 2
	}
	j.run = func(ctx context.Context, out io.Writer) error { return r.suite(ctx, m, dir, list, out) }
	return j
}

func resultName(dir string, m machine) string {
	return strings.ReplaceAll(suiteName(dir), "/", "-") + "-" + m.String()
}

// suite runs a suite. If all that is wrong is that tests were too late, those run once more.
func (r *runner) suite(ctx context.Context, m machine, dir string, list []needs.Need, out io.Writer) error {
	name := fmt.Sprintf("%s on %s", suiteName(dir), m)
	logs := m.boot.out
	if logs == "" {
		logs = filepath.Join(lab.Build(), "logs", m.String(), strings.ReplaceAll(suiteName(dir), "/", "-"))
	}
	start := time.Now()
	t := &trial{machine: m, options: r.options, dir: dir, list: list, pattern: r.options.pattern, out: logs, tally: newTally(out)}
	err := t.run(ctx)
	if late := t.tally.late(); err == errTests && len(late) > 0 {
		fmt.Fprintf(out, "AGAIN   %s, for what was too late: %s\n", name, strings.Join(late, ", "))
		first := t.tally
		t.pattern, t.out, t.tally = "^("+strings.Join(late, "|")+")$", logs+"-again", newTally(out)
		err = t.run(ctx)
		t.tally.after(first)
	}
	return r.keep(resultName(dir, m), name, start, t.tally, out, err)
}

// keep saves the result for the summary and prints it.
func (r *runner) keep(file, name string, start time.Time, t *tally, out io.Writer, err error) error {
	took := time.Since(start)
	err = errors.Join(err, t.result(took, err).save(filepath.Join(resultsDir(), file)))
	if err != nil {
		fmt.Fprintf(out, "FAILED  %s after %v: %v\n", name, took.Round(time.Second), err)
		return err
	}
	fmt.Fprintf(out, "PASSED  %s in %v: boot %v, CPU %v\n", name, took.Round(time.Second), t.boot.Round(time.Second/10), t.cpu.Round(time.Second))
	return nil
}

// notApplicable keeps the result of a suite that does not run on a machine.
func (r *runner) notApplicable(m machine, dir string, tests int, lacks needs.Need) error {
	what := fmt.Sprintf("%s on %s", suiteName(dir), m)
	r.pool.print("NOT APPLICABLE  %s: needs %s\n", what, lacks)
	result := result{NotApplicable: tests, Reasons: []string{fmt.Sprintf("%s: needs %s", what, lacks)}}
	return result.save(filepath.Join(resultsDir(), resultName(dir, m)))
}

// missing keeps in dir the failure of a kernel that there is not.
func (r *runner) missing(dir, kernel string, why error) error {
	name := "kernel-" + kernel
	r.pool.failed = append(r.pool.failed, name)
	r.pool.print("FAILED  %s: %v\n", name, why)
	return result{Failed: 1, Failures: []string{why.Error()}}.save(filepath.Join(dir, name))
}

// compileSuites compiles the suites into build/suites/guest and build/suites/hosts.
func compileSuites(ctx context.Context, dirs []string) error {
	for _, kind := range []string{"guest", "hosts"} {
		to := filepath.Join(lab.Build(), "suites", kind) + "/"
		args := []string{"test", "-c", "-tags", "lab", "-ldflags=-s -w", "-o", to} // stripped: guests read them slowly
		for _, dir := range dirs {
			if filepath.Base(filepath.Dir(dir)) == kind {
				args = append(args, dir)
			}
		}
		if args[len(args)-1] == to {
			continue
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the suites: %w\n%s", err, out)
		}
	}
	return nil
}

// binary returns the path of the compiled suite.
func (t *trial) binary() string {
	return filepath.Join(lab.Build(), "suites", filepath.Base(filepath.Dir(t.dir)), filepath.Base(t.dir)+".test")
}

func (t *trial) flags() []string {
	return []string{"-test.v", "-test.timeout=" + t.timeout().String(), "-test.run=" + t.pattern, fmt.Sprintf("-test.short=%t", t.short)}
}

func (t *trial) environment() []string {
	has := t.has
	if t.options.soak > 0 {
		has = append(slices.Clone(has), string(needs.Long))
	}
	return []string{"KRPING_SOAK=" + t.options.soak.String(), fmt.Sprintf("KRPING_SLOW=%d", t.slow), needs.Variable + "=" + has.String()}
}

func (t *trial) run(ctx context.Context) error {
	if filepath.Base(filepath.Dir(t.dir)) == "hosts" {
		return t.onHosts(ctx)
	}
	return t.inGuest(ctx)
}

// inGuest runs the suite in a VM of its own. A complaint of the VM's kernel fails the suite, too.
func (t *trial) inGuest(ctx context.Context) error {
	config := t.machine.boot.config(1)
	config.AtOnce = slices.Contains(t.list, needs.RaceCheck) || built(t.kernel)
	config.Out = t.out
	ctx, cancel := context.WithTimeout(ctx, t.timeout()+reportTime)
	defer cancel()
	began := time.Now()
	l, err := lab.Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		_ = l.Close()
		t.tally.cpu += l.CPUTime()
	}()
	t.tally.boot += time.Since(began)
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	start := time.Now()
	err = l.VM(0).Run(ctx, lab.Cmd{
		Argv: append([]string{t.binary()}, t.flags()...),
		Env: append(t.environment(), "KRPING_BUILD="+lab.Build(), "KRPING_KMOD="+lab.Module(t.kernel),
			"KRPING_ADDR="+l.VM(0).Addr(), "KRPING_OUT=/lab/out", "KRPING_DEVICE="+l.Device()),
		Stdout: t.tally, Stderr: t.tally,
	})
	err = t.tally.ended(err)
	if errors.Is(err, lab.ErrVMGone) {
		err = fmt.Errorf("%w; its console: %s", err, filepath.Join(config.Out, "console1.log"))
	}
	if err != nil && time.Since(start) >= t.timeout() && l.VM(0).Alive() {
		err = fmt.Errorf("%w\ntasks that sleep uninterruptibly: %s", err, l.VM(0).Blocked())
	}
	if t.kernel == lab.Debug && l.VM(0).Alive() {
		if leaks := checkMemory(ctx, l.VM(0), t.tally.out); leaks != nil {
			err = errors.Join(err, leaks)
		}
	}
	if report := l.Complaints(); report != "" {
		err = errors.Join(errors.New(report), err)
	}
	if stuck := l.StuckCPU(); err != nil && err != errTests && stuck != "" {
		err = fmt.Errorf("a CPU was stuck: %s\n%w", stuck, err)
	}
	return err
}

func checkMemory(ctx context.Context, vm *lab.VM, out io.Writer) error {
	note, err := vm.CheckMemory(ctx)
	if note != "" {
		fmt.Fprintf(out, "leaks of others:\n%s", note)
	}
	return err
}

// onHosts runs a suite here, which boots its VMs itself.
func (t *trial) onHosts(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, t.binary(), t.flags()...)
	cmd.Dir = t.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(append(os.Environ(), t.environment()...), "KERNEL="+t.kernel)
	cmd.Stdout, cmd.Stderr = t.tally, t.tally
	err := cmd.Run()
	t.tally.cpu += cpuTime(cmd)
	return t.tally.ended(err)
}

// cpuTime returns what a program that has ended and its children have used.
func cpuTime(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// checks returns jobs for the NAME=COMMAND of the beside option.
func (r *runner) checks(beside []string) ([]job, error) {
	var jobs []job
	for _, text := range beside {
		name, command, ok := strings.Cut(text, "=")
		if !ok || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("--beside %q: want NAME=COMMAND", text)
		}
		jobs = append(jobs, job{name: name, run: func(ctx context.Context, out io.Writer) error {
			return r.check(ctx, name, command, out)
		}})
	}
	return jobs, nil
}

// check runs a command at low priority. Its output is kept in build/logs and printed if it fails. If it
// is that of go test, its tests are counted, else the check counts as one.
func (r *runner) check(ctx context.Context, name, command string, out io.Writer) error {
	start := time.Now()
	var text bytes.Buffer
	t := newTally(&text)
	cmd := exec.CommandContext(ctx, "nice", "-n", "10", "bash", "-c", command)
	cmd.Dir = lab.Repo()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stdout, cmd.Stderr = t, t
	err := cmd.Run()
	t.cpu = cpuTime(cmd)
	if t.passed+t.failed == 0 && err == nil {
		t.passed = 1
	} else if t.failed > 0 {
		err = errTests
	}
	if err := saveLog(name, text.Bytes()); err != nil {
		return err
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		tail := strings.Join(lines[max(0, len(lines)-checkLines):], "\n")
		fmt.Fprintln(out, tail)
		if err != errTests {
			err = fmt.Errorf("%w\n%s", err, tail)
		}
	}
	return r.keep(name, name, start, t, out, err)
}

func saveLog(name string, text []byte) error {
	dir := filepath.Join(lab.Build(), "logs", "checks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".log"), text, 0o644)
}
