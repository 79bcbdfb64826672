// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"strings"
	"testing"
	"time"
)

// RemoveDevice takes the RDMA device away.
func RemoveDevice(t testing.TB) {
	t.Helper()
	Run(t, "rdma", "link", "delete", Device(t))
}

// AddDevice makes the RDMA device again.
func AddDevice(t testing.TB) {
	t.Helper()
	Run(t, "rdma", "link", "add", Device(t), "type", strings.TrimSuffix(Device(t), "0"), "netdev", "eth0")
}

// RemoveDevice takes the RDMA device away. The kernel waits until the bridge, which ends by
// itself, has let go of it.
func (b *Bridge) RemoveDevice(t testing.TB) {
	t.Helper()
	RemoveDevice(t)
	if err := b.Cmd.Wait(); err == nil {
		t.Error("the bridge's exit status does not tell that its device is gone")
	}
}

// NoResources waits until no RDMA resource is left. The one queue pair is the connection
// manager's.
func NoResources(t testing.TB) {
	t.Helper()
	Eventually(t, 20*time.Second, "no RDMA resource is left", func() bool {
		return strings.Contains(Run(t, "rdma", "resource", "show", Device(t)), " qp 1 cm_id 0 mr 0 ")
	})
}
