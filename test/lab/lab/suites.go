// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"krping/test/internal/needs"
	"krping/test/lab"
)

// suiteOptions are those of the suites command.
type suiteOptions struct {
	only, skip []string
	pattern    string
	soak       time.Duration
	short      bool
	jobs       int
	beside     []string // NAME=COMMAND
}

func suitesCommand(boot *bootOptions) *cobra.Command {
	var o suiteOptions
	cmd := &cobra.Command{
		Use:   "suites [NAME...]",
		Short: "Run the VM suites, or those named, such as faults or guest/faults",
		Long: `Run the VM suites: those in test/guest inside one VM each, those in test/hosts here, with VMs of their own.

--kernel takes several kernels, separated by commas. The first one gets all tests. The others get no suite
that hardly depends on the kernel, and a part of the cases in tests of many. A kernel that there is not counts
as failed; the suites run on the others.`,
		Example: "  lab suites --kernel 6.12 block\n  lab suites --jobs 2 --kernel 6.1,6.12,newest --beside check='make -s check'",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.only = args
			machines, missing, err := findMachines(*boot, o.short)
			if err != nil {
				return err
			}
			return runSuites(cmd.Context(), o, machines, missing)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.pattern, "run", "", "only tests that match this `pattern`")
	f.StringSliceVar(&o.skip, "skip", nil, "not these `suites`")
	f.IntVarP(&o.jobs, "jobs", "j", 1, "suites at a time; a suite of two VMs counts as two")
	f.BoolVar(&o.short, "short", false, "run a part of the cases in tests of many")
	f.DurationVar(&o.soak, "soak", 0, "how long tests of faults repeat them (default: once)")
	f.StringArrayVar(&o.beside, "beside", nil, "NAME=COMMAND: a check that runs beside the suites, at low priority; several run one after the other")
	return cmd
}

// runSuites runs what is applicable on each of the machines, and the checks beside. It fails for each kernel that
// is missing.
func runSuites(ctx context.Context, o suiteOptions, machines []machine, missing map[string]error) error {
	dirs, err := suiteDirs()
	if err != nil {
		return err
	}
	if err := known(dirs, append(slices.Clone(o.only), o.skip...)); err != nil {
		return err
	}
	p := newPool(o.jobs)
	r := runner{options: o, pool: p}
	for kernel, why := range missing {
		if err := r.missing(resultsDir(), kernel, why); err != nil {
			return err
		}
	}
	var jobs []job
	var compile []string
	for _, m := range machines {
		for _, dir := range dirs {
			if !o.wants(dir) {
				continue
			}
			list, tests, err := needs.Declared(dir)
			if err != nil {
				return err
			}
			if lacks := m.lacks(list); lacks != "" {
				if err := r.notApplicable(m, dir, tests, lacks); err != nil {
					return err
				}
				continue
			}
			if !slices.Contains(compile, dir) {
				compile = append(compile, dir)
			}
			jobs = append(jobs, r.job(m, dir, list))
		}
	}
	checks, err := r.checks(o.beside)
	if err != nil {
		return err
	}
	if err := compileSuites(ctx, compile); err != nil {
		return err
	}
	qemu, err := lab.FindQEMU()
	if err != nil {
		return err
	}
	fmt.Println("QEMU", qemu.Version)
	p.run(ctx, jobs, checks)
	if len(p.failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(p.failed, ", "))
	}
	return nil
}

// suiteDirs returns the directories of test/guest and test/hosts that hold tests.
func suiteDirs() ([]string, error) {
	var dirs []string
	for _, kind := range []string{"guest", "hosts"} {
		files, err := filepath.Glob(filepath.Join(lab.Repo(), "test", kind, "*", "*_test.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if dir := filepath.Dir(file); !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs, nil
}

// suiteName returns the name of the suite in a directory, such as guest/block.
func suiteName(dir string) string { return filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir) }

// isNamed says whether the suite in a directory has that name, with or without guest/ or hosts/ in front.
func isNamed(dir, name string) bool { return name == filepath.Base(dir) || name == suiteName(dir) }

// known checks the names of suites: one that is misspelt would run nothing, and pass.
func known(dirs, names []string) error {
	var all []string
	for _, dir := range dirs {
		if name := filepath.Base(dir); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return isNamed(dir, name) }) {
			return fmt.Errorf("no suite %q: there are %s", name, strings.Join(all, ", "))
		}
	}
	return nil
}

func (o suiteOptions) wants(dir string) bool {
	named := func(name string) bool { return isNamed(dir, name) }
	return (len(o.only) == 0 || slices.ContainsFunc(o.only, named)) && !slices.ContainsFunc(o.skip, named)
}

// resultsDir is where results wait for the summary.
func resultsDir() string { return filepath.Join(lab.Build(), "results") }
