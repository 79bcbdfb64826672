// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvme

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"krping/test/guest/internal/guest"
)

// Modules of another driver stack export the same symbols as the kernel's. The other stack is a copy of ib_core under
// another name. This test must be the last one, as it unloads all RDMA modules.
func TestMixedDriverStacks(t *testing.T) {
	guest.RemoveDevice(t)
	guest.Run(t, "rmmod", "rdma_krping")
	unload(t, "nvme_rdma", "nvmet_rdma", "rdma_rxe", "rdma_ucm", "ib_uverbs", "ib_umad", "rdma_cm", "iw_cm", "ib_cm")
	if _, err := os.Stat("/sys/module/ib_uverbs_support"); err == nil { // newer kernels have it
		unload(t, "ib_uverbs_support")
	}
	unload(t, "ib_core")
	other := filepath.Join(t.TempDir(), "my_core.ko")
	if err := os.WriteFile(other, renamed(t, "ib_core", "my_core"), 0o600); err != nil {
		t.Fatal(err)
	}
	guest.Run(t, "insmod", other)
	for _, args := range [][]string{add(t), {"connect", "--nqn", nqn, "--traddr", guest.Addr(t)}} {
		f := fails(t, 4, []string{"two driver stacks are mixed", "exports duplicate symbol", "owned by my_core", "modinfo -n ib_core"}, args...)
		modinfo, _, _ := strings.Cut(f.fix, " shows")
		guest.Run(t, "sh", "-c", modinfo)
	}
	guest.Run(t, "rmmod", "my_core")
	guest.Run(t, "modprobe", "rdma_rxe")
	guest.AddDevice(t)
	canServe(t, add(t))
}

// renamed returns a module under another name of the same length. It drops the signature, which would not match.
func renamed(t *testing.T, name, to string) []byte {
	t.Helper()
	path := strings.TrimSpace(guest.Run(t, "modinfo", "-n", name))
	data, err := os.ReadFile(path)
	if err == nil && strings.HasSuffix(path, ".xz") {
		var r *xz.Reader
		if r, err = xz.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(r)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.TrimSuffix(data, []byte("~Module signature appended~\n"))
	return bytes.ReplaceAll(data, []byte(name), []byte(to))
}
