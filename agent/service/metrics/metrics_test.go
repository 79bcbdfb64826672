// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"krping/agent/service/raid"
	"krping/agent/service/reconciler"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

// meter is a fake Meter.
type meter []biotrace.Histogram

func (m meter) Read() ([]biotrace.Histogram, biotrace.Lost, error) { return m, biotrace.Lost{}, nil }

// write has two bios of at most 0.9 us, three of at most 1 ms, one of 1.09 ms and one of 100 s.
var write = biotrace.Histogram{
	Device: "krping0", Op: "WRITE", Count: 7, Sum: 101 * time.Second,
	Buckets: map[int]uint64{-161: 2, -80: 3, -79: 1, 54: 1},
}

func sources(t *testing.T, mount string) Sources {
	t.Helper()
	fs, err := proc.NewFS(mount)
	if err != nil {
		t.Fatal(err)
	}
	messages := NewMessages()
	messages.WithLabelValues("vol0", "error").Inc()
	return Sources{
		Version: "0.2.0", Proc: fs, Sys: "testdata/sys", Meter: meter{write}, Messages: messages, Log: zerolog.New(io.Discard),
		Counters: func(device string) (map[int]map[string]uint64, error) {
			switch device {
			case "broken0":
				return nil, errors.New("it does not answer")
			case "mlx5_0":
				return map[int]map[string]uint64{1: {"out_of_sequence": 5, "sent_pkts": 1234, "rx_roce_only_bytes": 8, "active_qps": 3}}, nil
			}
			return nil, nil
		},
		Declared: func() []reconciler.Status {
			return []reconciler.Status{
				{Name: "vol0", State: reconciler.Attached, Attached: 2, Failures: 3},
				{Name: "vol1", State: reconciler.Attached, Array: "/dev/md0", Member: raid.Failed, ReAdded: 4, ReAddFailures: 5},
			}
		},
	}
}

func gather(t *testing.T, s Sources) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := NewRegistry(s).Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// values returns the values of a family by their labels.
func values(f *dto.MetricFamily) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		all[strings.Join(labels, ",")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return all
}

func TestVersionOfAgent(t *testing.T) {
	for labels := range values(gather(t, sources(t, "../../../proc/testdata"))["krping_agent_build_info"]) {
		if !strings.Contains(labels+",", ",version=0.2.0,") {
			t.Errorf("%s, want the version that the program was given", labels)
		}
		return
	}
	t.Error("no krping_agent_build_info")
}

func TestValues(t *testing.T) {
	families := gather(t, sources(t, "../../../proc/testdata"))
	for _, want := range []struct {
		family, labels string
		value          float64
	}{
		{"krping_session_info", "backing=,device=krping0,mode=remote,peer=192.168.77.1:9999,rdma_device=rxe0,role=client,session=vol0,uuid=,writer=", 1},
		{"krping_session_info", "backing=,device=,mode=remote,peer=192.168.77.1:9999,rdma_device=rxe0,role=target,session=vol4,uuid=7d3c0d52-0a6e-4c3b-8f0e-2a7b1c9d4e66,writer=192.168.77.2", 1},
		{"krping_session_volatile", "role=client,session=vol1", 1},
		{"krping_session_shared", "role=client,session=vol1", 1},
		{"krping_session_read_only", "role=client,session=vol0", 0},
		{"krping_session_ops_total", "op=write,role=client,session=vol0", 68},
		{"krping_session_bytes_total", "op=write,role=client,session=vol0", 32961024},
		{"krping_session_bytes_total", "op=read,role=target,session=vol4", 49152},
		{"krping_session_state", "role=client,session=vol1,state=reconnecting", 1},
		{"krping_session_state", "role=client,session=vol1,state=live", 0},
		{"krping_session_reconnects_total", "role=client,session=vol1", 2},
		{"krping_session_inflight", "role=client,session=vol1", 3},
		{"krping_session_violations_total", "role=target,session=vol4", 1},
		{"krping_session_rejected_total", "role=target,session=vol4", 2},
		{"krping_session_dirty_bytes", "role=client,session=vol3", 65536},
		{"krping_tap_drops_total", "reason=full,session=vol2", 2},
		{"krping_tap_forwarded_bytes_total", "session=vol2", 1392640},
		{"krping_pingpong_bytes_total", "device=rxe0,op=write", 64},
		{"krping_pingpong_threads", "device=rxe0", 1},
		{"krping_module_info", "srcversion=31AB29E630CC655557B71AE,version=0.1.0", 1},
		{"krping_module_loaded", "", 1},
		{"krping_declared_session_state", "session=vol0,state=attached", 1},
		{"krping_declared_session_state", "session=vol0,state=lost", 0},
		{"krping_declared_session_failures_total", "session=vol0", 3},
		{"krping_raid_member_state", "array=/dev/md0,session=vol1,state=failed", 1},
		{"krping_raid_member_state", "array=/dev/md0,session=vol1,state=in_sync", 0},
		{"krping_raid_member_readded_total", "array=/dev/md0,session=vol1", 4},
		{"krping_raid_member_readd_failures_total", "array=/dev/md0,session=vol1", 5},
		{"krping_rdma_port_up", "device=mlx5_0,link_layer=Ethernet,port=1", 1},
		{"krping_rdma_port_rate_bytes_per_second", "device=mlx5_0,port=1", 12.5e9},
		{"krping_rdma_port_received_bytes_total", "device=mlx5_0,port=1", 4000},
		{"krping_rdma_port_received_packets_total", "device=mlx5_0,port=1", 10},
		{"krping_rdma_port_errors_total", "counter=VL15_dropped,device=mlx5_0,port=1", 3},
		{"krping_rdma_hw_packets_total", "counter=sent_pkts,device=mlx5_0,port=1", 1234},
		{"krping_rdma_hw_bytes_total", "counter=rx_roce_only_bytes,device=mlx5_0,port=1", 8},
		{"krping_rdma_hw_events_total", "counter=out_of_sequence,device=mlx5_0,port=1", 5},
		{"krping_rdma_port_up", "device=siw0,link_layer=Ethernet,port=1", 1},
		{"krping_rdma_port_up", "device=mlx4_0,link_layer=InfiniBand,port=1", 1},
		{"krping_rdma_port_up", "device=mlx4_0,link_layer=InfiniBand,port=2", 0},
		{"krping_collector_up", "collector=rdma,device=mlx5_0", 1},
		{"krping_collector_up", "collector=rdma,device=siw0", 1},
		{"krping_collector_up", "collector=rdma,device=mlx4_0", 1},
		{"krping_collector_up", "collector=rdma,device=broken0", 0},
		{"krping_collector_up", "collector=sessions,device=", 1},
		{"krping_kernel_messages_total", "severity=error,subject=vol0", 1},
		{"krping_latency_up", "", 1},
	} {
		got, ok := values(families[want.family])[want.labels]
		if !ok || got != want.value {
			t.Errorf("%s{%s}: %v (%v), want %v", want.family, want.labels, got, ok, want.value)
		}
	}
	for family, labels := range map[string]string{
		"krping_session_violations_total": "role=client,session=vol0", "krping_session_stalls_total": "role=target,session=vol4",
		"krping_session_dirty_bytes":             "role=client,session=vol0",
		"krping_raid_member_state":               "array=,session=vol0,state=failed",
		"krping_rdma_hw_events_total":            "counter=active_qps,device=mlx5_0,port=1",
		"krping_rdma_port_errors_total":          "counter=port_xmit_wait,device=mlx5_0,port=1",
		"krping_rdma_port_rate_bytes_per_second": "device=mlx4_0,port=2",
	} {
		if _, ok := values(families[family])[labels]; ok {
			t.Errorf("%s{%s}: must not be exported", family, labels)
		}
	}
}

// What a thread has transferred stays counted when it ends, and is not counted twice.
func TestPingPongCounts(t *testing.T) {
	mount := t.TempDir()
	registry := NewRegistry(sources(t, mount))
	for _, step := range []struct {
		threads, labels string
		want            float64
	}{
		{"1-rxe0 100 1 0 0 0 0 0 0", "device=rxe0,op=send", 100},
		{"1-rxe0 150 2 0 0 0 0 0 0\n2-rxe0 7 1 0 0 0 0 0 0", "device=rxe0,op=send", 157},
		{"2-rxe0 9 1 0 0 0 0 0 0", "device=rxe0,op=send", 159},
		{"2-siw0 1 1 0 0 0 0 0 0", "device=rxe0,op=send", 159},
		{"2-rxe0 5 1 0 0 0 0 0 0", "device=rxe0,op=send", 164}, // of a module that was loaded again
		{"", "device=siw0,op=send", 1},
	} {
		if err := os.WriteFile(filepath.Join(mount, "krping"), []byte(step.threads+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "krping_pingpong_bytes_total" && values(f)[step.labels] != step.want {
				t.Errorf("after %q: %v, want %v for %s", step.threads, values(f), step.want, step.labels)
			}
		}
	}
}

// Each described metric is exported and follows Prometheus' naming conventions.
func TestAllDescribedMetricsAreExported(t *testing.T) {
	s := sources(t, "../../../proc/testdata")
	families := gather(t, s)
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for _, d := range descs {
		if n := name.FindStringSubmatch(d.String())[1]; families[n] == nil {
			t.Errorf("%s is described but not exported", n)
		}
	}
	problems, err := testutil.GatherAndLint(NewRegistry(s))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A source that cannot be read does not hide the others.
func TestUnreadableSources(t *testing.T) {
	s := sources(t, t.TempDir()) // no module
	s.Sys, s.Meter = t.TempDir(), brokenMeter{ErrNotMeasured}
	families := gather(t, s)
	if values(families["krping_module_loaded"])[""] != 0 || values(families["krping_latency_up"])[""] != 0 {
		t.Error("without module and meter, krping_module_loaded and krping_latency_up must be 0")
	}
	for labels, up := range values(families["krping_collector_up"]) {
		if up != 1 {
			t.Errorf("%s: 0, though there is nothing to read", labels)
		}
	}
	s = sources(t, "../../../proc/testdata")
	s.Meter = brokenMeter{errors.New("it does not count")}
	families = gather(t, s)
	if values(families["krping_collector_up"])["collector=latency,device="] != 0 || len(families["krping_session_info"].GetMetric()) != 5 {
		t.Errorf("with a failing meter: %v", families["krping_collector_up"])
	}
}

type brokenMeter struct{ error }

func (m brokenMeter) Read() ([]biotrace.Histogram, biotrace.Lost, error) {
	return nil, biotrace.Lost{}, m.error
}

// The native histogram has the meter's buckets; those of the classic one are sums of them.
func TestLatencies(t *testing.T) {
	family := gather(t, sources(t, "../../../proc/testdata"))["krping_latency_seconds"]
	if len(family.GetMetric()) != 1 {
		t.Fatalf("%v", family)
	}
	h := family.GetMetric()[0].GetHistogram()
	if h.GetSchema() != biotrace.Schema || h.GetSampleCount() != 7 || h.GetSampleSum() != 101 {
		t.Errorf("schema %d, %d bios in %v s", h.GetSchema(), h.GetSampleCount(), h.GetSampleSum())
	}
	native, index, count := map[int32]int64{}, int32(0), int64(0)
	deltas := h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		index += span.GetOffset()
		for range span.GetLength() {
			count += deltas[0]
			deltas = deltas[1:]
			if count > 0 {
				native[index] = count
			}
			index++
		}
	}
	if fmt.Sprint(native) != "map[-161:2 -80:3 -79:1 54:1]" {
		t.Errorf("native buckets %v", native)
	}
	classic := map[float64]uint64{}
	for _, b := range h.GetBucket() {
		classic[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	for upper, want := range map[float64]uint64{1. / (1 << 20): 2, 1. / 2048: 2, 1. / 1024: 5, 1. / 512: 6, 64: 6} {
		if got, ok := classic[upper]; !ok || got != want {
			t.Errorf("%d bios in at most %v s, want %d", got, upper, want)
		}
	}
	if len(classic) != 27 || slices.Max(slices.Collect(maps.Keys(classic))) != 64 {
		t.Errorf("classic buckets %v", classic)
	}
}
