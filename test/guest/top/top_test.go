// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package top tests `krpingctl top` inside one VM, in a terminal of tmux.
package top

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"krping/agent/stats/sampler"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/output"
)

// terminal is a window of tmux with a shell.
type terminal struct{ t *testing.T }

func tmux(t *testing.T, args ...string) string {
	t.Helper()
	return guest.Run(t, append([]string{"tmux", "-u", "-L", "krping", "-f", "/dev/null"}, args...)...)
}

func open(t *testing.T, width, height string) terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Fatalf("tmux is not installed (package tmux): %v", err)
	}
	t.Setenv("LC_ALL", "C.UTF-8")
	term := terminal{t}
	tmux(t, "new-session", "-d", "-x", width, "-y", height, `PS1="ready> " exec sh`)
	t.Cleanup(func() { tmux(t, "kill-server") })
	term.shows("ready>")
	return term
}

// typed sends a line; keys sends keys by their names in tmux.
func (term terminal) typed(line string) {
	term.t.Helper()
	tmux(term.t, "send-keys", "-l", line+"\n")
}

func (term terminal) keys(names ...string) {
	term.t.Helper()
	tmux(term.t, append([]string{"send-keys"}, names...)...)
}

func (term terminal) screen() string {
	term.t.Helper()
	return tmux(term.t, "capture-pane", "-p")
}

// shows waits until the screen matches a pattern, and returns the screen.
func (term terminal) shows(pattern string) string {
	term.t.Helper()
	text := ""
	match := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(guest.TraceStarts); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if text = term.screen(); match.MatchString(text) {
			return text
		}
	}
	term.t.Fatalf("%q is not on the screen:\n%s", pattern, text)
	return ""
}

// keep saves a file among the suite's results.
func keep(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(os.Getenv("KRPING_OUT"), name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func top(t *testing.T, args ...string) *exec.Cmd {
	return exec.Command(guest.Binary(t, "krpingctl"), append([]string{"top"}, args...)...)
}

func volume(t *testing.T, port int) (dev string, bridge *guest.Bridge) {
	t.Helper()
	bridge = guest.StartBridge(t, port, guest.StorePath(t), "64MiB")
	return guest.Attach(t, port, ""), bridge
}

func TestTopInTerminal(t *testing.T) {
	dev, bridge := volume(t, 9910)
	guest.StartFio(t, dev, "--rw=randrw", "--bs=4k", "--iodepth=8", "--size=16M", "--time_based", "--runtime=1h", "--verify_backlog=64")
	term := open(t, "80", "24")
	term.typed("stty -g >/tmp/before; cd " + filepath.Dir(guest.Binary(t, "krpingctl")))
	term.typed("./krpingctl top; echo exit code $?")

	// The screen has a running session, its counters, and latencies of each stage.
	const some = `(?:[1-9][0-9.]*|0[.][0-9]*[1-9][0-9]*) `
	term.shows(`READ +` + some + `p50 .*\n.*p99.*\n.*max(.*\n)*.*WRITE +` + some + `p50`)
	time.Sleep(4 * time.Second) // for a screen with some history
	text := term.shows(`▸ vol0 +live +` + some + `[kM]?B/s +` + some + `[kM]?B/s +` + some)
	keep(t, "top-80x24.txt", text)
	keep(t, "top-80x24.ansi", tmux(t, "capture-pane", "-e", "-p"))
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != 24 || !strings.Contains(lines[0], "krping on ") || !strings.Contains(lines[23], "q quit") {
		t.Errorf("the screen is incomplete:\n%s", text)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if want := regexp.MustCompile(`READ +\d+ p50( +` + some + `(µs|ms|s)){6}\n`); !want.MatchString(text) {
		t.Errorf("some stage of reads has no latency:\n%s", text)
	}

	term.keys("p")
	paused := term.shows("PAUSED")
	time.Sleep(1500 * time.Millisecond)
	if now := term.screen(); now != paused {
		t.Errorf("the paused screen changes:\n%s\n%s", paused, now)
	}
	term.keys("p")
	term.keys("?")
	term.shows("largest p99")
	term.keys("?", "s")
	term.shows("by throughput")
	tmux(t, "resize-window", "-x", "30", "-y", "8")
	term.shows("needs 60x12")
	tmux(t, "resize-window", "-x", "80", "-y", "24")
	term.shows("▸ vol0")

	bridge.Kill()
	text = term.shows(`! vol0: reconnecting(.*\n)*.*vol0 +reconnecting`)
	keep(t, "top-reconnecting.txt", text)

	term.keys("q")
	term.shows("exit code 0")
	term.restored()
}

// restored checks that the terminal has the settings that stty -g wrote to /tmp/before.
func (term terminal) restored() {
	term.t.Helper()
	if flags := tmux(term.t, "display-message", "-p", "alternate #{alternate_on} cursor #{cursor_flag}"); flags != "alternate 0 cursor 1\n" {
		term.t.Errorf("the terminal's flags: %s", flags)
	}
	term.typed("clear; stty -g | cmp - /tmp/before && echo same settings")
	term.shows("(?m)^same settings")
}

// top restores the terminal, however it ends.
func TestTerminalIsRestored(t *testing.T) {
	term := open(t, "80", "24")
	term.typed("stty -g >/tmp/before; cd " + filepath.Dir(guest.Binary(t, "krpingctl")))
	for _, signal := range []string{"TERM", "HUP"} {
		term.typed("clear; ./krpingctl top --interval 200ms; echo ended with $?")
		term.shows("No session. Attach one")
		guest.Run(t, "pkill", "-"+signal, "-x", "krpingctl")
		term.shows("(?m)^ended with 0")
		term.restored()
	}
	term.typed("clear; ./krpingctl top --interval 200ms; echo ended with $?")
	term.shows("No session")
	term.keys("C-c")
	term.shows("(?m)^ended with 0")
	term.restored()
}

// The samples count exactly what was written.
func TestSamplesCountWrites(t *testing.T) {
	const size, count = 4 << 20, 4 << 20 / 4096
	dev, _ := volume(t, 9911)
	all := top(t, "--json", "--interval", "500ms")
	var stdout, stderr output.Buffer
	all.Stdout, all.Stderr = &stdout, &stderr
	if err := all.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, guest.TraceStarts, "the first sample", func() bool { return strings.Contains(stdout.String(), "\n") })
	guest.Run(t, guest.Binary(t, "krpingctl"), "write", dev, "--size", "4MiB", "--bs", "4KiB", "--direct")
	wrote := time.Now()
	guest.Eventually(t, 20*time.Second, "a sample after the last write", func() bool {
		samples := parse(t, stdout.String())
		return samples[len(samples)-1].Time.Add(-500 * time.Millisecond).After(wrote)
	})
	guest.Signal(t, all, unix.SIGTERM)
	if err := all.Wait(); err != nil {
		t.Errorf("top --json ended by SIGTERM: %v\n%s", err, stderr.String())
	}
	keep(t, "samples.jsonl", stdout.String())

	var bytes, ops, bios, heat uint64
	samples := parse(t, stdout.String())
	for _, sample := range samples {
		if problems := strings.Join(sample.Problems, "; "); problems != "" {
			// An interrupt that meets a tracing program loses its event.
			late.ErrorfIf(t, strings.HasPrefix(problems, "latencies are incomplete"), "problems: %s", problems)
			return
		}
		if len(sample.Sessions) != 1 || sample.NoLatencies != "" || len(sample.Links) != 1 {
			t.Fatalf("sample %+v", sample)
		}
		s := sample.Sessions[0]
		bytes += s.Write.Bytes.Delta
		ops += s.Write.Ops.Delta
		for _, l := range s.Latencies {
			if l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.Max || l.Max > 20*time.Second {
				t.Errorf("latency %+v", l)
			}
			if l.Op == "WRITE" && l.Stage == "total" {
				bios += l.Count
			}
		}
		for _, n := range s.Heat {
			heat += n
		}
	}
	last := samples[len(samples)-1].Sessions[0].Write
	if bytes != size || last.Bytes.Total != size || ops != count || last.Ops.Total != count {
		t.Errorf("the samples add up to %d bytes in %d writes, the last has %+v, want %d in %d", bytes, ops, last, size, count)
	}
	if bios != count || heat != count {
		t.Errorf("%d bios in the latencies, %d in the heat map, want %d", bios, heat, count)
	}

	text := guest.MustKrpingctl(t, "top", "--once", "--interval", "200ms")
	keep(t, "once.txt", text)
	if !strings.Contains(text, "0 B/s        0 IOPS    4.0 MiB in all") || strings.Count(text, "vol0") != 2 {
		t.Errorf("--once:\n%s", text)
	}
	text = onceAsNobody(t)
	if strings.Contains(text, "vol0") || !strings.Contains(text, "only root with CAP_SYS_ADMIN may read it") || !strings.Contains(text, "sessions are not shown") {
		t.Errorf("--once for a user without privileges:\n%s", text)
	}
}

// onceAsNobody returns the output of top --once for a user without privileges.
func onceAsNobody(t *testing.T) string {
	t.Helper()
	return guest.Run(t, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", guest.Binary(t, "krpingctl"), "top", "--once", "--interval", "200ms")
}

func parse(t *testing.T, text string) []sampler.Sample {
	t.Helper()
	var samples []sampler.Sample
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break // the line is incomplete
		}
		var s sampler.Sample
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		samples = append(samples, s)
	}
	return samples
}

func TestWithoutTerminalOrModule(t *testing.T) {
	var stderr bytes.Buffer
	cmd := top(t)
	cmd.Stderr = &stderr
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(stderr.String(), "--once or --json") {
		t.Errorf("without a terminal: %v, %s", cmd.ProcessState, stderr.String())
	}
	guest.Run(t, "rmmod", "rdma_krping")
	defer guest.Run(t, "insmod", guest.Module(t))
	text := onceAsNobody(t)
	if !strings.Contains(text, "modprobe rdma_krping") || !strings.Contains(text, "rxe0 on eth0 ACTIVE") {
		t.Errorf("without the module:\n%s", text)
	}
}
