// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krping/agent/host/kernel"
)

func TestControllersWithoutDisks(t *testing.T) {
	class := t.TempDir()
	for dir, files := range map[string]map[string]string{
		"nvme0": {"transport": "pcie", "state": "live"},
		"nvme1": {"transport": "tcp", "state": "live", "subsysnqn": "nqn.a"},
		"nvme2": {"transport": "tcp", "state": "live", "subsysnqn": "nqn.b", "nvme2c2n1/size": "8"},
		"nvme3": {"transport": "tcp", "state": "connecting", "subsysnqn": "nqn.c"},
		"nvme4": {"transport": "rdma", "state": "live", "cntrltype": "discovery", "subsysnqn": "nqn.own"},
		"nvme5": {"transport": "rdma", "state": "live", "subsysnqn": "nqn.2014-08.org.nvmexpress.discovery"},
	} {
		for name, text := range files {
			path := filepath.Join(class, dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var lacking []controller
	for _, c := range readControllers(class) {
		if c.lacksDisks() {
			lacking = append(lacking, c)
		}
	}
	if len(lacking) != 1 || lacking[0].name != "nvme1" {
		t.Fatalf("%+v", lacking)
	}
	const changed = "nvme nvme1: identifiers changed for nsid 1"
	for _, tc := range []struct {
		log        kernel.Lines
		cause, fix string
	}{
		{nil, "no enabled namespace", "target list"},
		{kernel.Lines{"nvme nvme1: new ctrl: NQN \"nqn.a\", addr 10.0.0.1:4420", changed}, `the kernel logged "identifiers changed for nsid 1"`, "disconnect --device nvme1"},
		{kernel.Lines{changed, "nvme nvme1: new ctrl: NQN \"nqn.a\", addr 10.0.0.1:4420"}, "no enabled namespace", "target list"},
		{kernel.Lines{"nvme nvme10: identifiers changed for nsid 1"}, "no enabled namespace", "target list"},
		{kernel.Lines{"nvme nvme1: globally duplicate IDs for nsid 1"}, "duplicate IDs for nsid 1", "identifier of its own"},
	} {
		f := lacking[0].finding(tc.log)
		if f.Level != Warning || !strings.Contains(f.Cause, tc.cause) || !strings.Contains(f.Fix, tc.fix) {
			t.Errorf("%q: %+v, want %q, %q", tc.log, f, tc.cause, tc.fix)
		}
	}
}
