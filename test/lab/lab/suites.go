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

	"krping/test/lab"
)

const suiteTimeout = 15 * time.Minute

func suitesCommand(o *bootOptions) *cobra.Command {
	var (
		skip    []string
		pattern string
		soak    time.Duration
	)
	cmd := &cobra.Command{
		Use:   "suites [NAME...]",
		Short: "Run the VM suites (test/guest in one VM, test/hosts on two), or those named",
		RunE: func(cmd *cobra.Command, args []string) error {
			s := suites{kernel: o.kernel, boot: *o, only: args, skip: skip, pattern: pattern, soak: soak}
			return s.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&pattern, "run", "", "only tests that match this `pattern`")
	cmd.Flags().StringSliceVar(&skip, "skip", nil, "not these `suites`")
	cmd.Flags().DurationVar(&soak, "soak", 0, "how long tests of faults repeat them in each suite (default: once)")
	return cmd
}

// suites is a run of the VM suites on one kernel.
type suites struct {
	kernel  string
	boot    bootOptions
	only    []string
	skip    []string
	pattern string
	soak    time.Duration
	failed  []string
}

// timeout is the limit of one suite.
func (s *suites) timeout() time.Duration { return suiteTimeout + s.soak }

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
	for _, dir := range guests {
		if s.wanted(dir) {
			s.note(dir, func() error { return s.inGuest(ctx, dir) })
		}
	}
	for _, dir := range hosts {
		if s.wanted(dir) {
			s.note(dir, func() error { return s.onHosts(ctx, dir) })
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
		if !slices.Contains(names, name) {
			return fmt.Errorf("no suite %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

func (s *suites) wanted(dir string) bool {
	name := filepath.Base(dir)
	return (len(s.only) == 0 || slices.Contains(s.only, name)) && !slices.Contains(s.skip, name)
}

// note runs a suite and says how it ended, and after how long.
func (s *suites) note(dir string, run func() error) {
	name := filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir)
	start := time.Now()
	err := run()
	took := time.Since(start).Round(time.Second)
	if err != nil {
		s.failed = append(s.failed, name)
		fmt.Printf("SUITE FAILED  %s on %s after %v: %v\n", name, s.kernel, took, err)
		return
	}
	fmt.Printf("SUITE PASSED  %s on %s in %v\n", name, s.kernel, took)
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
func (s *suites) inGuest(ctx context.Context, dir string) error {
	name := filepath.Base(dir)
	binary := filepath.Join(lab.Build(), "suites", name+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "lab", "-o", binary, dir)
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compile: %w\n%s", err, out)
	}
	config := s.boot.config(1)
	if config.Out == "" {
		config.Out = filepath.Join(lab.Build(), "logs", s.kernel, name)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	l, err := lab.Start(ctx, config)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	tally := newTally("guest-"+name, s.kernel, os.Stdout)
	err = l.VM(0).Run(ctx, lab.Cmd{
		Argv: []string{binary, "-test.v", "-test.timeout=" + s.timeout().String(), "-test.run=" + s.pattern},
		Env: []string{
			"KRPING_BUILD=" + lab.Build(), "KRPING_KMOD=" + lab.Module(s.kernel), "KRPING_ADDR=" + l.VM(0).Addr(),
			"KRPING_OUT=/lab/out", "KRPING_SOAK=" + s.soak.String(),
		},
		Stdout: tally, Stderr: tally,
	})
	if errors.Is(err, lab.ErrVMGone) {
		err = fmt.Errorf("%w; its console: %s", err, filepath.Join(config.Out, "console1.log"))
	}
	if report := l.Complaints(); report != "" {
		tally.failed++
		err = errors.Join(err, errors.New(report))
	}
	return errors.Join(err, tally.finish(err))
}

// onHosts runs a suite here that boots VMs itself.
func (s *suites) onHosts(ctx context.Context, dir string) error {
	tally := newTally("hosts-"+filepath.Base(dir), s.kernel, os.Stdout)
	cmd := exec.CommandContext(ctx, "go", "test", "-v", "-count=1", "-tags", "lab", "-timeout", s.timeout().String(), "-run", s.pattern, dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), "KERNEL="+s.kernel, "KRPING_SOAK="+s.soak.String())
	cmd.Stdout, cmd.Stderr = tally, tally
	err := cmd.Run()
	return errors.Join(err, tally.finish(err))
}

// tally counts the tests in the output of a suite and passes it on.
type tally struct {
	path           string
	out            io.Writer
	mu             sync.Mutex
	line           []byte
	passed, failed int
}

func newTally(name, kernel string, out io.Writer) *tally {
	return &tally{path: filepath.Join(lab.Build(), "results", name+"-"+kernel), out: out}
}

func (t *tally) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = append(t.line, p...)
	for {
		line, rest, found := bytes.Cut(t.line, []byte("\n"))
		if !found {
			break
		}
		t.count(string(line))
		t.line = rest
	}
	return t.out.Write(p)
}

// count takes a test that was skipped as failed: what cannot run here must say why and fail.
func (t *tally) count(line string) {
	switch {
	case strings.HasPrefix(line, "--- PASS: "):
		t.passed++
	case strings.HasPrefix(line, "--- FAIL: "), strings.HasPrefix(line, "--- SKIP: "):
		t.failed++
	}
}

// finish keeps the numbers for the summary.
func (t *tally) finish(err error) error {
	if err != nil && t.failed == 0 {
		t.failed = 1 // the suite as a whole
	}
	if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(t.path, fmt.Appendf(nil, "%d %d\n", t.passed, t.failed), 0o644); err != nil {
		return err
	}
	switch {
	case t.failed > 0 && err == nil:
		return fmt.Errorf("%d tests failed or were skipped", t.failed)
	case t.passed == 0 && err == nil:
		return errors.New("no test ran")
	}
	return nil
}

func summaryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "summary",
		Short: "Add up the results of this build's suites",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := filepath.Glob(filepath.Join(lab.Build(), "results", "*"))
			if err != nil {
				return err
			}
			var passed, failed int
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				var p, f int
				if _, err := fmt.Sscan(string(data), &p, &f); err != nil {
					return fmt.Errorf("read %s: %w", file, err)
				}
				fmt.Printf("%-32s %4d passed, %d failed\n", filepath.Base(file), p, f)
				passed, failed = passed+p, failed+f
			}
			fmt.Printf("%d passed, %d failed\n", passed, failed)
			if failed > 0 || passed == 0 {
				return errors.New("the tests failed")
			}
			return nil
		},
	}
}
