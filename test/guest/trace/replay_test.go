// SPDX-License-Identifier: Apache-2.0

//go:build lab

package trace

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krping/agent/trace/biotrace"
	"krping/test/guest/internal/guest"
)

// workload returns the properties of bios that a replay keeps.
func workload(bios []biotrace.Bio) []string {
	var list []string
	for _, b := range bios {
		list = append(list, fmt.Sprintf("%-6s %6d %6d", b.Op, b.Sector, b.Bytes))
	}
	slices.Sort(list)
	return list
}

// A replay submits the recorded I/O, and what it wrote can be verified.
func TestRecordAndReplay(t *testing.T) {
	dev, _ := attach(t, 9967, "")
	path := filepath.Join(t.TempDir(), "load.trace")
	rec, seen := start(t, dev, "--record", path), start(t, dev, "--json")
	guest.Fio(t, dev, "--rw=randrw", "--bsrange=4k-64k", "--size=8m", "--io_size=2m", "--iodepth=8", "--verify=0", "--fsync=16")
	rec.stop(0)
	recorded := workload(seen.bios())
	rec.complete()
	if len(recorded) < 40 {
		t.Fatalf("only %d bios: %q", len(recorded), recorded)
	}

	again := start(t, dev, "--json")
	out := guest.MustKrpingctl(t, "replay", path, dev, "--seed", "9", "--speed", "4")
	replayed := workload(again.bios())
	again.complete()
	if !slices.Equal(recorded, replayed) {
		t.Errorf("recorded %d bios:\n%s\nreplayed %d:\n%s", len(recorded), strings.Join(recorded, "\n"), len(replayed), strings.Join(replayed, "\n"))
	}
	if !strings.Contains(out, fmt.Sprintf("replayed %d of %d bios", len(recorded), len(recorded))) {
		t.Errorf("\n%s", out)
	}
	t.Logf("\n%s", out)
	for _, line := range recorded {
		var op string
		var sector, bytes int64
		if _, err := fmt.Sscan(line, &op, &sector, &bytes); err != nil {
			t.Fatal(err)
		}
		if op == "WRITE" {
			guest.MustKrpingctl(t, "verify", dev, "--seed", "9", "--offset", fmt.Sprint(sector*512), "--size", fmt.Sprint(bytes), "--bs", "4KiB", "--pattern", "random")
			break
		}
	}

	small := guest.NullDisk(t, "trace2", map[string]string{"size": "8"})
	for args, want := range map[string]string{
		path + " " + small:                   "is not a krping device",
		path + " " + small + " --any-device": "was recorded on a device of 16777216",
		"/proc/version " + dev:               "line 1",
		path + " " + dev + " --speed -1":     "must not be negative",
	} {
		if r := guest.Krpingctl(t, append([]string{"replay"}, strings.Fields(args)...)...); r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("replay %s: exit code %d, stderr %s", args, r.Code, r.Stderr)
		}
	}
}
