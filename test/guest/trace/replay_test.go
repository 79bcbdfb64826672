// SPDX-License-Identifier: Apache-2.0

//go:build lab

package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/agent/trace/biotrace"
	"krping/agent/trace/replay"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
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
	needs.Test(t, needs.Ends)
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

	var again *tracing
	var out string
	var replayed []string
	repeat(func() *tracing {
		again = start(t, dev, "--json")
		out = guest.MustKrpingctl(t, "replay", path, dev, "--seed", "9", "--speed", "4")
		replayed = workload(again.bios())
		return again
	})
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

// A recording of a partition has the partition's offsets, and none of the I/O beside it. --for is the time of
// tracing, without that of loading.
func TestRecordPartition(t *testing.T) {
	needs.Test(t, needs.Once)
	disk := guest.NullDisk(t, "trace3", map[string]string{"size": "16", "memory_backed": "1"})
	guest.Run(t, "addpart", disk, "1", "2048", "8192")
	part := disk + "p1"
	path := filepath.Join(t.TempDir(), "part.trace")
	const limit = 4 * time.Second
	rec := start(t, strings.TrimPrefix(part, "/dev/"), "--record", path, "--for", limit.String())
	begin := time.Now()
	write(t, disk, "write_disk", "--size", "64KiB", "--bs", "16KiB")
	write(t, part, "write_part", "--size", "64KiB", "--bs", "16KiB", "--offset", "1MiB")
	if took := time.Since(begin); took > limit {
		late.Errorf(t, "the writes took %v", took)
		return
	}
	err := rec.cmd.Wait()
	if took := time.Since(begin); err != nil || took < limit-200*time.Millisecond {
		late.ErrorfIf(t, err == nil, "traced for %v, want %v: %v\n%s", took, limit, err, rec.stderr.String())
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := replay.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	var sectors []uint64
	for _, b := range r.List {
		if b.Op == "WRITE" {
			sectors = append(sectors, b.Sector)
		}
	}
	slices.Sort(sectors)
	if want := []uint64{2048, 2080, 2112, 2144}; r.Size != 4<<20 || !slices.Equal(sectors, want) {
		t.Errorf("recorded writes at %d of a device of %d bytes, want %d", sectors, r.Size, want)
	}
}
