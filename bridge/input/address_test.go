// SPDX-License-Identifier: Apache-2.0

package input

import (
	"net/netip"
	"testing"
)

func TestHostPort(t *testing.T) {
	for text, want := range map[string]struct {
		host string
		port uint16
	}{
		"10.0.0.1": {"10.0.0.1", 0}, "10.0.0.1:9999": {"10.0.0.1", 9999}, "fd77::1": {"fd77::1", 0}, "[fd77::1]": {"fd77::1", 0},
		"[fd77::1]:9999": {"fd77::1", 9999}, "fe80::1%eth0": {"fe80::1%eth0", 0}, "[fe80::1%eth0]:1": {"fe80::1%eth0", 1}, "fd77::1:99": {"fd77::1:99", 0},
		"localhost": {"localhost", 0}, "target-1.example.org.:65535": {"target-1.example.org.", 65535}, "4host:1": {"4host", 1},
	} {
		if host, port, err := HostPort(text); err != nil || host != want.host || port != want.port {
			t.Errorf("%s: %s %d %v, want %v", text, host, port, err, want)
		}
	}
	for _, text := range []string{
		"", ":9999", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:", "10.0.0.1:x", "10.0.0", "10.0.0.256", "1.2.3.4.5", "[10.0.0.1]:99", "[host]:99", "[fd77::1", "fd77::1]",
		"[fd77::1]99", "a b", "a..b", "-a", "a/b", "10.0.0.1/24", "host:99:98", "fd77::x",
	} {
		if host, port, err := HostPort(text); err == nil {
			t.Errorf("%s: accepted as %s, port %d", text, host, port)
		}
	}
}

func TestResolve(t *testing.T) {
	addrs, named, err := Resolve(t.Context(), "10.0.0.1")
	if err != nil || named || len(addrs) != 1 || addrs[0] != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("an address: %v %v %v", addrs, named, err)
	}
	addrs, named, err = Resolve(t.Context(), "localhost")
	if err != nil || !named || len(addrs) == 0 || !addrs[0].IsLoopback() {
		t.Errorf("localhost: %v %v %v", addrs, named, err)
	}
	if addrs, named, err = Resolve(t.Context(), "no-such-host.invalid"); err == nil || !named {
		t.Errorf("a host that does not exist: %v %v", addrs, named)
	}
}
