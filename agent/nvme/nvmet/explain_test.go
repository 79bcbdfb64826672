// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

func TestExplainListen(t *testing.T) {
	tree, _ := newFake(t)
	for _, tc := range []struct {
		addr       Attributes
		err        error
		log        kernel.Lines
		kind       error
		cause, fix string
	}{
		{Attributes{"trtype": RDMA, "traddr": "127.0.0.1", "trsvcid": "4420"}, unix.EINVAL, kernel.Lines{"nvmet: transport type 1 not supported"}, kernel.ErrNoModule, "nvmet-rdma is not loaded", "modprobe nvmet-rdma"},
		{Attributes{"trtype": TCP, "traddr": "localhost", "trsvcid": "4420"}, unix.EINVAL, kernel.Lines{"nvmet_tcp: malformed ip/port passed: localhost:4420"}, unix.EINVAL, "malformed", "an IP address"},
		{Attributes{"trtype": TCP, "traddr": "127.0.0.1", "trsvcid": "1"}, unix.EADDRINUSE, nil, unix.EADDRINUSE, "in use", "another --port"},
		{Attributes{"trtype": TCP, "traddr": "203.0.113.1", "trsvcid": "4420"}, unix.EADDRNOTAVAIL, nil, unix.EADDRNOTAVAIL, "not an address of this host", "ip addr add"},
		{Attributes{"trtype": TCP, "traddr": "127.0.0.1", "trsvcid": "4420"}, unix.ENOMEM, kernel.Lines{"nvmet_tcp: no memory"}, unix.ENOMEM, "no memory", "krpingctl doctor"},
	} {
		err := tree.explainListen(Port{ID: 1, Addr: tc.addr}, tc.err, tc.log)
		if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.cause) || !strings.Contains(kernel.Fix(err), tc.fix) {
			t.Errorf("%v: %v, fix %q: want %v, %q, %q", tc.addr, err, kernel.Fix(err), tc.kind, tc.cause, tc.fix)
		}
	}
}

func TestExplainEnable(t *testing.T) {
	for err, want := range map[error]string{
		unix.ENOENT: "no such device", unix.EBUSY: "busy", unix.EACCES: "the kernel logged: nvmet: failed",
	} {
		got := explainEnable("/dev/nothing", err, kernel.Lines{"nvmet: failed to open block device"})
		if !errors.Is(got, err) || !strings.Contains(got.Error(), want) || kernel.Fix(got) == "" {
			t.Errorf("%v: %v, fix %q: want %q", err, got, kernel.Fix(got), want)
		}
	}
}

func TestTCPListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := netip.MustParseAddrPort(l.Addr().String())
	want := fmt.Sprintf("(process %d) listens on %v", os.Getpid(), addr)
	if got := tcpListener(addr.Addr(), addr.Port()); !strings.HasSuffix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
