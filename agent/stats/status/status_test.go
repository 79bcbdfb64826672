// SPDX-License-Identifier: Apache-2.0

package status

import (
	"os"
	"path/filepath"
	"testing"

	"krping/agent/host/rdmalink"
)

// A device is shown with all its ports, and without what it lacks: Soft-iWARP has neither firmware, nor a
// rate, nor counters.
func TestDevices(t *testing.T) {
	sys := t.TempDir()
	for file, text := range map[string]string{"mlx4_0/fw_ver": "2.42.5000", "mlx4_0/ports/1/rate": "56 Gb/sec (4X FDR)", "siw0/node_guid": "1"} {
		path := filepath.Join(sys, "class/infiniband", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mlx4 := device(sys, rdmalink.Link{Name: "mlx4_0", Ports: []rdmalink.Port{{Number: 1, State: "ACTIVE"}, {Number: 2, State: "DOWN"}}}, map[int]map[string]uint64{1: {"out_of_sequence": 5}})
	if p := mlx4.Ports; mlx4.Firmware != "2.42.5000" || len(p) != 2 || p[0].Name != "mlx4_0/1" || p[0].Rate != 7e9 || p[0].Counters["out_of_sequence"] != 5 || p[1].Rate != 0 || len(p[1].Counters) != 0 {
		t.Errorf("%+v", mlx4)
	}
	siw := device(sys, rdmalink.Link{Name: "siw0", Ports: []rdmalink.Port{{Number: 1, State: "ACTIVE"}}}, nil)
	if siw.Firmware != "" || len(siw.Ports) != 1 || siw.Ports[0].Name != "siw0" || siw.Ports[0].Counters == nil {
		t.Errorf("%+v", siw)
	}
}
