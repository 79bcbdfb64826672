// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"krping/test/lab/insns"
)

const kallsyms = `ffffffff81000000 T startup_64
0000000000000000 A fixed_percpu_data
ffffffff81100000 t blk_mq_submit_bio
ffffffff81200000 T memcpy
ffffffff82000000 D some_data
ffffffffc0001000 t loop_64	[crc32_pclmul]
ffffffffc0002000 t rxe_requester	[rdma_rxe]
ffffffffc0002800 t rxe_icrc_hdr	[rdma_rxe]
ffffffffc0003000 t krping_queue_rq	[rdma_krping]
ffffffffc0004000 t rxe_post_send	[rdma_rxe]
ffffffffc0005000 t bpf_prog_bbe68e9a453b2d06_bio_queue	[bpf]
ffffffffc0006000 t bpf_trace_run1
`

func TestFunctionsAndLayers(t *testing.T) {
	s, err := parseKallsyms(kallsyms)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		address  uint64
		function string
		server   bool
		layer    Layer
	}{
		{0xffffffff81100010, "blk_mq_submit_bio", false, layerBlock},
		{0xffffffff81200000, "memcpy", false, layerCopies},
		{0xffffffffc0001fff, "loop_64 [crc32_pclmul]", false, layerChecksums},
		{0xffffffffc0002001, "rxe_requester [rdma_rxe]", false, layerRXE},
		{0xffffffffc0002801, "rxe_icrc_hdr [rdma_rxe]", true, layerChecksums},
		{0xffffffffc0003001, "krping_queue_rq [rdma_krping]", true, layerKrping},
		{0xffffffffc0005001, "bpf_prog_bbe68e9a453b2d06_bio_queue [bpf]", false, layerTracing},
		{0xffffffffc0006001, "bpf_trace_run1", false, layerTracing},
		{0x401000, "(user space)", true, layerBridge},
		{0x401000, "(user space)", false, layerApplication},
	} {
		f := s.at(want.address)
		if name, layer := describeFunction(f), layerOf(f, want.server); name != want.function || layer != want.layer {
			t.Errorf("%#x is %s of layer %s, want %s, %s", want.address, name, layer, want.function, want.layer)
		}
	}
	for _, text := range []string{"", "ffffffff81000000 T", "x T name", strings.Repeat("0000000000000000 T hidden\n", 3)} {
		if _, err := parseKallsyms(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

// A function of this program has its name, and begins where it does.
func TestProgram(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var s symbols
	if err := s.addProgram(path); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]any{"krping/test/bench.AllJobs": AllJobs, "strings.Repeat": strings.Repeat} {
		entry := uint64(reflect.ValueOf(f).Pointer())
		for _, address := range []uint64{entry, entry + 1} {
			if got := s.at(address); got != (Function{Name: name, User: true}) || s.begins(address) != (address == entry) {
				t.Errorf("%#x is in %+v, begins %v; %s begins at %#x", address, got, s.begins(address), name, entry)
			}
		}
	}
	if err := s.addProgram("/bin/sh"); err == nil {
		t.Error("the shell is a Go program")
	}
}

// What a tracer adds is the difference to the same job without one, and its own functions have a layer.
func TestCostOfTracing(t *testing.T) {
	cost := func(contender string, all, tracing float64) JobCost {
		c := HostCost{All: all, Layers: map[Layer]float64{layerTracing: tracing}}
		return JobCost{Job: "4k", Contender: contender, Rounds: []IOCost{{Client: c}}}
	}
	names := TracedContenders()
	costs := []JobCost{cost(kernelTarget, 1000, 0), cost(names[0], 1700, 500), cost(nvmeRDMA, 900, 0)}
	if got, want := tracingTable(costs), "| 4k | "+strings.TrimPrefix(names[0], "krping+")+" | 700 | 500 |\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%q, want at the end %q", got, want)
	}
	if got := tracingTable(costs[:1]); got != "" {
		t.Errorf("without a tracer: %q", got)
	}
	for _, name := range names {
		if c := newContender(name); c == nil || c.name() != name {
			t.Errorf("%s: contender %v", name, c)
		}
	}
	krpingctl := Function{Name: "main.main", User: true}
	if layer := layerOf(krpingctl, false); layer != layerTracing {
		t.Errorf("krpingctl's layer is %s", layer)
	}
}

func TestMarginalCost(t *testing.T) {
	s, err := parseKallsyms(kallsyms)
	if err != nil {
		t.Fatal(err)
	}
	const block, krping, startup, fio = 0xffffffff81100000, 0xffffffffc0003000, 0xffffffff81000000, 0x401000
	const post = 0xffffffffc0004000
	few := insns.Counts{block: {Insns: 200, Runs: 2}, krping: {Insns: 100, Runs: 1}, startup: {Insns: 5000, Runs: 1}, fio: {Insns: 70000, Runs: 10}, post: {Insns: 10, Runs: 1}, post + 8: {Insns: 10, Runs: 1}}
	many := insns.Counts{block: {Insns: 800, Runs: 8}, krping: {Insns: 400, Runs: 4}, startup: {Insns: 5000, Runs: 1}, fio: {Insns: 40000, Runs: 9}, post: {Insns: 70, Runs: 7}, post + 8: {Insns: 70, Runs: 7}}
	h := hostCost(few, many, 3, s, false)
	if h.All != 340 || h.Layers[layerApplication] != -10000 || h.Layers[layerBlock] != 200 || h.Layers[layerKrping] != 100 || h.Layers[layerRXE] != 40 || h.Layers[layerOther] != 0 || h.onNIC() != 300 {
		t.Errorf("%+v, %v with a NIC", h, h.onNIC())
	}
	if len(h.Calls) != 1 || h.Calls[callPost] != 2 {
		t.Errorf("calls: %v, want two posts", h.Calls)
	}
}
