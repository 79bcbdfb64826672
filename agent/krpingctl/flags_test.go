// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"krping/bridge/cli"
	"krping/proc"
)

// Each duration may be a number of seconds, and each size has units, in every command.
func TestUnitsOfEveryFlag(t *testing.T) {
	durations, sizes := 0, 0
	for _, cmd := range commandsBelow(newRoot(&program{out: io.Discard})) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			accepts := func(texts ...string) {
				shown := map[string]bool{}
				for _, text := range texts {
					if err := f.Value.Set(text); err != nil {
						t.Errorf("%s --%s %s: %v", cmd.CommandPath(), f.Name, text, err)
					}
					shown[f.Value.String()] = true
				}
				if len(shown) != 1 {
					t.Errorf("%s --%s: %v mean different values: %v", cmd.CommandPath(), f.Name, texts, shown)
				}
			}
			switch f.Value.Type() {
			case "duration":
				durations++
				accepts("30", "30s")
			case "size":
				sizes++
				for _, text := range []string{"4k", "1M"} { // a disk in memory has whole MiB
					if f.Name != "null" || text != "4k" {
						accepts(text, strings.ToUpper(text), strings.ToUpper(text)+"iB")
					}
				}
			}
		})
	}
	if durations < 8 || sizes < 6 {
		t.Errorf("only %d durations and %d sizes", durations, sizes)
	}
}

// The letters of flags that many commands have.
func TestLetters(t *testing.T) {
	letters := map[string]string{
		"json": "j", "output": "o", "addr": "a", "port": "p", "interface": "i", "read": "r", "write": "w", "follow": "f", "config": "c",
	}
	seen := map[string]bool{}
	for _, cmd := range commandsBelow(newRoot(&program{out: io.Discard})) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			path := commandName(cmd)
			nvme := strings.HasPrefix(path, "nvme") || path == "capture" && f.Name == "port" // tcpdump's -p is another
			if want := letters[f.Name]; want != "" && f.Shorthand != want && !nvme {
				t.Errorf("%s --%s has the letter %q, want %q", path, f.Name, f.Shorthand, want)
			}
			seen[f.Name] = true
		})
		if cmd.Runnable() && !cmd.HasSubCommands() && cmd.Flags().Lookup("quiet") == nil && !strings.HasPrefix(commandName(cmd), "completion") && cmd.Name() != "help" {
			t.Errorf("%s has no --quiet", commandName(cmd))
		}
	}
	for name := range letters {
		if !seen[name] {
			t.Errorf("no command has --%s", name)
		}
	}
	for letters, want := range map[string]string{"a": "addr", "p": "port", "S": "size", "C": "count", "v": "verbose", "V": "validate"} {
		if f := clientCommand(&program{}).Flags().ShorthandLookup(letters); f == nil || f.Name != want {
			t.Errorf("client -%s is not --%s, as in krping", letters, want)
		}
	}
}

// complete returns what the shell completes.
func complete(t *testing.T, args string) string {
	t.Helper()
	root := newRoot(&program{out: io.Discard})
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(args, " ")...))
	if err := root.Execute(); err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	return out.String()
}

func TestCompletion(t *testing.T) {
	if _, err := os.Stat("/sys/class/net/lo"); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"capture --interface ": "lo\n", "capture -i l": "lo\n", "link add x --netdev ": "lo\n", "link keep ": "lo\n",
		"trace --columns ": "time\n", "trace --columns time,to": "time,total\n", "trace --op ": "write\n", "write --pattern ": "random\n",
		"client --mode ": "tap\n", "client --mem-mode r": "reg\n", "link add x --type ": "siw\n", "stat --output ": "json\n", "sweep --test ": "rlat\n", "experiment s": "srq\n", "sweep --qp ": "ud\n", "client --verb c": "cmp_swap\n",
		"client --backing ": "ram:\n", "server --block-size ": "4096\n", "capture --protocol ": "krping", "nvme connect --transport ": "tcp\n", "agent --f": "--forget", "client --source l": "lo\n", "sweep --source ": "lo\n",
	} {
		if got := complete(t, args); !strings.Contains("\n"+got, "\n"+want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	if got := complete(t, "stat "); got != fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveNoFileComp) {
		t.Errorf("stat, which takes no argument: %q", got)
	}
	if got := complete(t, "replay "); !strings.HasSuffix(got, fmt.Sprintf(":%d\n", cobra.ShellCompDirectiveDefault)) {
		t.Errorf("replay: %q, want files", got)
	}
}

// A volume that is attached is completed for stop, and one that is served for stop --target.
func TestCompletionOfVolumes(t *testing.T) {
	p := &program{out: io.Discard}
	var err error
	if p.proc, err = newTestFS(); err != nil {
		t.Fatal(err)
	}
	root := newRoot(p)
	for args, want := range map[string][]string{
		"stop ":           {"vol0", "vol4"},
		"agent --forget ": {"vol0"},
	} {
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(io.Discard)
		root.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(args, " ")...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if !strings.Contains("\n"+out.String(), "\n"+name+"\n") {
				t.Errorf("%s: %q, want %s", args, out.String(), name)
			}
		}
	}
}

// pty returns the two ends of a terminal.
func pty(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return master, terminal
}

// Colors need a terminal that has them, and nobody who does not want them; progress bars one that can overwrite
// a line.
func TestTerminals(t *testing.T) {
	_, terminal := pty(t)
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, tc := range []struct {
		f             *os.File
		term, noColor string
		bars, colors  bool
	}{
		{terminal, "xterm-256color", "", true, true}, {terminal, "xterm", "1", true, false}, {terminal, "dumb", "", false, false}, {file, "xterm", "", false, false},
	} {
		t.Setenv("TERM", tc.term)
		t.Setenv("NO_COLOR", tc.noColor)
		if cli.CanOverwrite(tc.f) != tc.bars || hasColors(tc.f) != tc.colors {
			t.Errorf("%+v: bars %v, colors %v", tc, cli.CanOverwrite(tc.f), hasColors(tc.f))
		}
	}
}

// With --quiet, only warnings and errors are logged.
func TestQuiet(t *testing.T) {
	for args, want := range map[string]bool{"": true, " --quiet": false, " -q": false} {
		stderr, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		before := os.Stderr
		os.Stderr = w
		err = run(t.Context(), strings.Fields("client --addr localhost --dry-run"+args), io.Discard)
		os.Stderr = before
		_ = w.Close()
		logged, readErr := io.ReadAll(stderr)
		if err != nil || readErr != nil || strings.Contains(string(logged), "localhost is 127.0.0.1") != want {
			t.Errorf("%q: %v %v, logged %q", args, err, readErr, logged)
		}
	}
	if err := run(t.Context(), strings.Fields("stat --quiet --debug"), io.Discard); exitCode(err) != exitUsage {
		t.Errorf("--quiet --debug: %v", err)
	}
}

func newTestFS() (proc.FS, error) { return proc.NewFS("../../proc/testdata") }
