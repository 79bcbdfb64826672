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
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"krping/test/lab"
)

const (
	suiteTimeout = 10 * time.Minute // the longest takes a third of it; more on a slow kernel
	reportTime   = time.Minute      // for a suite to say where it hung
)

func suitesCommand(o *bootOptions) *cobra.Command {
	var (
		skip    []string
		pattern string
		without string
		soak    time.Duration
		short   bool
		jobs    int
	)
	cmd := &cobra.Command{
		Use:   "suites [NAME...]",
		Short: "Run the VM suites (test/guest in one VM, test/hosts on one or two), or those named, like faults or guest/faults",
		RunE: func(cmd *cobra.Command, args []string) error {
			kernel, err := lab.FindKernel(o.kernel)
			if err != nil {
				return err
			}
			s := suites{kernel: o.kernel, slow: kernel.Slow, boot: *o, only: args, skip: skip, pattern: pattern, without: without, soak: soak, short: short, jobs: jobs}
			return s.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&pattern, "run", "", "only tests that match this `pattern`")
	cmd.Flags().StringVar(&without, "without", "", "no tests that match this `pattern`")
	cmd.Flags().StringSliceVar(&skip, "skip", nil, "not these `suites`")
	cmd.Flags().IntVarP(&jobs, "jobs", "j", 1, "so many suites of one VM at a time: each prints what it says when it ends")
	cmd.Flags().BoolVar(&short, "short", false, "tests of many cases take a part of them: for a kernel beside one that gets all")
	cmd.Flags().DurationVar(&soak, "soak", 0, "how long tests of faults repeat them in each suite (default: once)")
	return cmd
}

// suites is a run of the VM suites on one kernel.
type suites struct {
	kernel  string
	slow    int
	boot    bootOptions
	only    []string
	skip    []string
	pattern string
	without string
	soak    time.Duration
	short   bool
	jobs    int

	mu     sync.Mutex // protects what follows, and what is printed
	failed []string
}

// timeout is the limit of one suite.
func (s *suites) timeout() time.Duration { return suiteTimeout*time.Duration(s.slow) + s.soak }

// onlyDebug are suites that need what only the debug kernel has.
var onlyDebug = []string{"nomem"}

// patching are suites in which the kernel patches its code again and again: for tracers and firewall rules.
var patching = []string{"trace", "top", "agent", "nvme", "doctor"}

// on names what the suites run on.
func (s *suites) on() string {
	if s.boot.iwarp {
		return s.kernel + "-iwarp"
	}
	return s.kernel
}

func (s *suites) run(ctx context.Context) error {
	guests, err := packages("guest")
	if err != nil {
		return err
	}
	hosts, err := packages("hosts")
	if err != nil {
		return err
	}
	if err := s.known(append(slices.Clone(guests), hosts...)); err != nil {
		return err
	}
	var running errgroup.Group
	running.SetLimit(max(s.jobs, 1))
	for _, dir := range guests {
		if s.wanted(dir) {
			running.Go(func() error {
				s.note("guest", dir, func(r *trial) error { return s.inGuest(ctx, r) })
				return nil
			})
		}
	}
	_ = running.Wait()          // note keeps what failed
	for _, dir := range hosts { // two VMs each
		if s.wanted(dir) {
			s.note("hosts", dir, func(r *trial) error { return s.onHosts(ctx, r) })
		}
	}
	if len(s.failed) > 0 {
		return fmt.Errorf("kernel %s: failed: %s", s.kernel, strings.Join(s.failed, ", "))
	}
	return nil
}

// known checks the names of suites: one that is misspelt would run nothing, and pass.
func (s *suites) known(dirs []string) error {
	var names []string
	for _, dir := range dirs {
		if name := filepath.Base(dir); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range append(slices.Clone(s.only), s.skip...) {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return isNamed(dir, name) }) {
			return fmt.Errorf("no suite %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// isNamed says whether the suite in a directory has that name, which may begin with guest/ or hosts/.
func isNamed(dir, name string) bool {
	base := filepath.Base(dir)
	return name == base || name == filepath.Base(filepath.Dir(dir))+"/"+base
}

func (s *suites) wanted(dir string) bool {
	named := func(name string) bool { return isNamed(dir, name) }
	if s.kernel != lab.Debug && slices.ContainsFunc(onlyDebug, named) {
		return false
	}
	return (len(s.only) == 0 || slices.ContainsFunc(s.only, named)) && !slices.ContainsFunc(s.skip, named)
}

// errTests is how a suite ends that ran to its end with tests that failed.
var errTests = errors.New("tests failed or were skipped")

// note runs a suite and says how it ended, and after how long. Where nothing is wrong but that tests were
// too late, those run once more.
func (s *suites) note(kind, dir string, run func(r *trial) error) {
	name := kind + "/" + filepath.Base(dir)
	start := time.Now()
	out, end := s.output(name)
	defer end()
	r := &trial{dir: dir, pattern: s.pattern, out: filepath.Join(lab.Build(), "logs", s.on(), filepath.Base(dir)), tally: newTally(out)}
	err := run(r)
	if late := r.tally.late(); err == errTests && len(late) > 0 {
		fmt.Fprintf(out, "SUITE AGAIN   %s on %s, for what was too late: %s\n", name, s.on(), strings.Join(late, ", "))
		first := r.tally
		r.pattern, r.out, r.tally = "^("+strings.Join(late, "|")+")$", r.out+"-again", newTally(out)
		err = run(r)
		r.tally.after(first)
	}
	err = errors.Join(err, r.tally.save(filepath.Join(lab.Build(), "results", kind+"-"+filepath.Base(dir)+"-"+s.on()), err))
	took := time.Since(start).Round(time.Second)
	if err != nil {
		s.mu.Lock()
		s.failed = append(s.failed, name)
		s.mu.Unlock()
		fmt.Fprintf(out, "SUITE FAILED  %s on %s after %v: %v\n", name, s.on(), took, err)
		return
	}
	fmt.Fprintf(out, "SUITE PASSED  %s on %s in %v\n", name, s.on(), took)
}

// output returns where a suite speaks: at once if it is alone, else what it said is printed when it ends, whole.
func (s *suites) output(name string) (out io.Writer, end func()) {
	if s.jobs <= 1 {
		return os.Stdout, func() {}
	}
	said := new(bytes.Buffer)
	print := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = said.WriteTo(os.Stdout)
	}
	fmt.Fprintf(said, "SUITE STARTS  %s on %s\n", name, s.on())
	print()
	return said, print
}

// trial is one run of a suite.
type trial struct {
	dir, pattern string
	out          string // directory of logs, unless an option says another
	tally        *tally
}

// packages returns the directories of test/KIND that hold tests.
func packages(kind string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(lab.Repo(), "test", kind, "*", "*_test.go"))
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, file := range files {
		if dir := filepath.Dir(file); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// inGuest compiles the suite here and runs it in a VM of its own, which is on trial too:
// a complaint of its kernel fails the suite.
func (s *suites) inGuest(ctx context.Context, r *trial) error {
	name := filepath.Base(r.dir)
	binary := filepath.Join(lab.Build(), "suites", name+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "lab", "-o", binary, r.dir)
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compile: %w\n%s", err, out)
	}
	config := s.boot.config(1)
	config.InTurn = slices.Contains(patching, name)
	if config.Out == "" {
		config.Out = r.out
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout()+reportTime)
	defer cancel()
	l, err := lab.Start(ctx, config)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	start := time.Now()
	err = l.VM(0).Run(ctx, lab.Cmd{
		Argv: []string{binary, "-test.v", "-test.timeout=" + s.timeout().String(), "-test.run=" + r.pattern, "-test.skip=" + s.without, fmt.Sprintf("-test.short=%t", s.short)},
		Env: []string{
			"KRPING_BUILD=" + lab.Build(), "KRPING_KMOD=" + lab.Module(s.kernel), "KRPING_ADDR=" + l.VM(0).Addr(),
			"KRPING_OUT=/lab/out", "KRPING_SOAK=" + s.soak.String(), "KRPING_DEVICE=" + l.Device(), fmt.Sprintf("KRPING_SLOW=%d", s.slow),
		},
		Stdout: r.tally, Stderr: r.tally,
	})
	err = r.tally.ended(err)
	if errors.Is(err, lab.ErrVMGone) {
		err = fmt.Errorf("%w; its console: %s", err, filepath.Join(config.Out, "console1.log"))
	}
	if err != nil && time.Since(start) >= s.timeout() && l.VM(0).Alive() {
		err = fmt.Errorf("%w\ntasks that sleep uninterruptibly: %s", err, l.VM(0).Blocked())
	}
	if s.kernel == lab.Debug && l.VM(0).Alive() {
		if leaks := checkMemory(ctx, l.VM(0), r.tally.out); leaks != nil {
			err = errors.Join(err, leaks)
		}
	}
	if report := l.Complaints(); report != "" {
		err = errors.Join(err, errors.New(report))
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

// onHosts runs a suite here that boots VMs itself.
func (s *suites) onHosts(ctx context.Context, r *trial) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-v", "-count=1", "-tags", "lab", "-timeout", s.timeout().String(), "-run", r.pattern, "-skip", s.without, fmt.Sprintf("-short=%t", s.short), r.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "KERNEL="+s.kernel, "KRPING_SOAK="+s.soak.String(), fmt.Sprintf("KRPING_SLOW=%d", s.slow))
	cmd.Stdout, cmd.Stderr = r.tally, r.tally
	return r.tally.ended(cmd.Run())
}
