// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"strings"
	"testing"

	"krping/agent/host/distro"
)

func TestExplainLoad(t *testing.T) {
	for _, tc := range []struct {
		said, plan string
		log        Lines
		cause, fix string
	}{
		{"could not insert 'nvme_rdma': Exec format error", "insmod /dev/null", Lines{"x", "ib_core: exports duplicate symbol ib_x (owned by mlx_compat)"}, "owned by mlx_compat", "modinfo -n ib_core"},
		{"could not insert 'nvme_rdma': Invalid argument", "", Lines{"nvme_rdma: disagrees about version of symbol rdma_x"}, "two driver stacks", "depmod -a"},
		{"Error running install command", "insmod /dev/null\ninstall /bin/false\n", nil, "install /bin/false", "nvme_rdma"},
		{"FATAL: Module nvme-rdma not found in directory /lib/modules/1", "", nil, "not installed for kernel 1", "apt install linux-modules-extra-1, then"},
		{"could not insert 'nvme_rdma': Unknown symbol in module", "insmod /dev/null\ninsmod /no/nvme-rdma.ko x=1\n", nil, "/no/nvme-rdma.ko does not exist", "depmod -a"},
		{"could not insert 'nvme_rdma': Key was rejected by service", "", nil, "Key was rejected", "sign"},
		{"could not insert 'nvme_rdma': Cannot allocate memory", "", Lines{"vmap failed"}, "vmap failed", "modprobe -v nvme-rdma"},
	} {
		f := explainLoad("nvme-rdma", distro.Parse("ID=ubuntu", "1"), "1", tc.said, tc.plan, tc.log)
		if !strings.Contains(f.Error(), tc.cause) || !strings.Contains(Fix(f), tc.fix) || !errors.Is(f, ErrNoModule) {
			t.Errorf("%s: %v, %s: want %q and %q", tc.said, f, f.Fix, tc.cause, tc.fix)
		}
	}
}

func TestLines(t *testing.T) {
	l := Lines{"a: one", "b: two", "a: three"}
	if got := l.Find("none", "two"); got != "b: two" {
		t.Errorf("found %q", got)
	}
	if got := l.About("a:"); got != "a: one; a: three" {
		t.Errorf("about a: %q", got)
	}
	if l.Find("four") != "" || l.About("four") != "" {
		t.Error("found a text that is in no line")
	}
}

// "This needs root" is said to those only who are not.
func TestDenied(t *testing.T) {
	const all, host = 1<<41 - 1, "         0          0 4294967295\n"
	for _, tc := range []struct {
		uid          int
		capabilities uint64
		uidMap       string
		why          string
	}{
		{0, all, host, ""},
		{0, all, "", ""},
		{1000, all, host, ""},
		{1000, 0, host, "this needs root"},
		{0, 0x00000000a80425fb, host, "this process is root without CAP_NET_ADMIN and CAP_SYS_ADMIN"}, // of a container
		{0, all &^ (1 << 12), host, "this process is root without CAP_NET_ADMIN,"},
		{0, all, "         0       1000          1\n", "in a user namespace only"},
	} {
		why, fix := explainDenied(tc.uid, tc.capabilities, tc.uidMap)
		if !strings.HasPrefix(why, tc.why) && !strings.Contains(why, tc.why) || (why == "") != (tc.why == "") || (fix == "") != (why == "") {
			t.Errorf("%+v: %q, %q", tc, why, fix)
		}
	}
}
