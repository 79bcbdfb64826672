// SPDX-License-Identifier: Apache-2.0

package rdmalink

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// device writes the files of a device into a sysfs.
func device(t *testing.T, sys, name string, files map[string]string) {
	t.Helper()
	for file, text := range files {
		path := filepath.Join(sys, "class/infiniband", name, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A device is read as far as it can be: Soft-iWARP has no counters, an InfiniBand port without its
// management agent has none that are numbers, and a port may be down.
func TestPorts(t *testing.T) {
	sys := t.TempDir()
	device(t, sys, "siw0", map[string]string{"node_guid": "5054:00ff:fe77:0002", "ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Ethernet", "ports/1/gid_attrs/ndevs/0": "eth0"})
	device(t, sys, "mlx4_0", map[string]string{
		"ports/1/state": "4: ACTIVE", "ports/1/link_layer": "InfiniBand", "ports/1/rate": "56 Gb/sec (4X FDR)",
		"ports/1/counters/port_rcv_data": "25", "ports/1/counters/symbol_error": "N/A (no PMA)", "ports/1/counters/link_downed": "2",
		"ports/2/state": "1: DOWN", "ports/2/link_layer": "InfiniBand", "ports/2/rate": "nothing",
		"ports/10/state": "2: INIT",
	})
	device(t, sys, "odd0", map[string]string{"ports/1/link_layer": "InfiniBand", "ports/2/state": "4: ACTIVE"})
	class := filepath.Join(sys, "class/infiniband")

	siw := read(class, "siw0")
	if want := (Port{1, "ACTIVE", "Ethernet", "eth0"}); siw.NodeGUID != "5054:00ff:fe77:0002" || len(siw.Ports) != 1 || siw.Ports[0] != want || siw.PortName(siw.Ports[0]) != "siw0" {
		t.Errorf("siw0: %+v", siw)
	}
	if ports, err := Ports(sys, "siw0"); err != nil || len(ports) != 1 || len(ports[0].Counters) != 0 {
		t.Errorf("siw0: %+v, %v", ports, err)
	}
	if hasCounters(class, "siw0") {
		t.Error("siw0 has hardware counters")
	}

	mlx4 := read(class, "mlx4_0")
	var names []string
	for _, p := range mlx4.Ports {
		names = append(names, mlx4.PortName(p)+" "+p.State)
	}
	if got := strings.Join(names, ", "); got != "mlx4_0/1 ACTIVE, mlx4_0/2 DOWN, mlx4_0/10 INIT" {
		t.Error(got)
	}
	ports, err := Ports(sys, "mlx4_0")
	if err != nil || len(ports) != 3 {
		t.Fatalf("mlx4_0: %+v, %v", ports, err)
	}
	if want := map[string]uint64{"port_rcv_data": 100, "link_downed": 2}; ports[0].Rate != 7e9 || !maps.Equal(ports[0].Counters, want) {
		t.Errorf("mlx4_0/1: %+v, want %v", ports[0], want)
	}
	if ports[1].Rate != 0 || ports[1].Counters != nil {
		t.Errorf("mlx4_0/2: %+v", ports[1])
	}

	ports, err = Ports(sys, "odd0")
	if err == nil || !strings.Contains(err.Error(), "port 1 of RDMA device odd0 has no state") || len(ports) != 1 || ports[0].Number != 2 {
		t.Errorf("odd0: %+v, %v", ports, err)
	}
	if _, err := Ports(sys, "gone0"); err == nil {
		t.Error("a device without ports is no error")
	}
}
