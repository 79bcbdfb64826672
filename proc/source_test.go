// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Two interfaces in one subnet, and one with addresses in two.
func hostInterfaces() []netInterface {
	list := func(name string, addrs ...string) netInterface {
		n := netInterface{name: name}
		for _, a := range addrs {
			n.addrs = append(n.addrs, netip.MustParsePrefix(a))
		}
		return n
	}
	return []netInterface{
		list("lo", "127.0.0.1/8", "::1/128"),
		list("eth0", "192.168.77.2/24", "fd77::2/64", "fe80::1/64"),
		list("eth1", "192.168.77.3/24", "fe80::1/64", "fd77::3/64", "fe80::3/64"),
		list("eth2", "10.0.0.2/24", "192.168.77.4/24"),
		list("down"),
	}
}

func TestSourceAddress(t *testing.T) {
	for _, tc := range []struct{ source, peer, want string }{
		{"192.168.77.3", "192.168.77.1", "192.168.77.3"},
		{"10.0.0.2", "192.168.77.1", "10.0.0.2"},
		{"::ffff:192.168.77.3", "192.168.77.1", "192.168.77.3"},
		{"eth1", "192.168.77.1", "192.168.77.3"},
		{"mlx5_1", "192.168.77.1", "192.168.77.3"},
		{"eth2", "192.168.77.1", "192.168.77.4"},
		{"eth2", "172.16.0.1", "10.0.0.2"},
		{"eth1", "fd77::1", "fd77::3"},
		{"eth1", "fe80::9%eth1", "fe80::1%eth1"},
		{"fe80::3", "fe80::9%eth1", "fe80::3%eth1"},
		{"fe80::1%eth0", "fe80::9%eth0", "fe80::1%eth0"},
	} {
		if got, err := sourceAddress(tc.source, map[string]string{"mlx5_1": "eth1"}[tc.source], netip.MustParseAddr(tc.peer), hostInterfaces()); err != nil || got.String() != tc.want {
			t.Errorf("%s to %s: %v, %v, want %s", tc.source, tc.peer, got, err, tc.want)
		}
	}
	for _, tc := range []struct{ source, peer, want string }{
		{"192.168.77.9", "192.168.77.1", "no network interface of this host has this address; there are 127.0.0.1 (lo), ::1 (lo), 192.168.77.2 (eth0)"},
		{"fe80::3%eth0", "fe80::9%eth0", "no network interface"},
		{"fe80::1", "fe80::9%eth0", "add one of them, like fe80::1%eth0"},
		{"eth3", "192.168.77.1", "neither an IP address nor a network interface of this host, which has lo, eth0, eth1, eth2, down"},
		{"down", "192.168.77.1", "no address from which to connect to 192.168.77.1"},
		{"eth2", "fd77::1", "no address from which to connect to fd77::1"},
	} {
		if got, err := sourceAddress(tc.source, map[string]string{"mlx5_1": "eth1"}[tc.source], netip.MustParseAddr(tc.peer), hostInterfaces()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s to %s: %v, %v, want an error with %q", tc.source, tc.peer, got, err, tc.want)
		}
	}
}

func TestNetdevOf(t *testing.T) {
	class := t.TempDir()
	for path, text := range map[string]string{
		"rxe0/ports/1/gid_attrs/ndevs/0":   "eth0\n",
		"mlx5_0/ports/2/gid_attrs/ndevs/0": "eth2\n", // of two ports, one without a network interface
		"mlx5_0/ports/1/state":             "4: ACTIVE\n",
		"ib0/ports/1/state":                "4: ACTIVE\n",
	} {
		path = filepath.Join(class, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for device, want := range map[string]string{"rxe0": "eth0", "mlx5_0": "eth2", "ib0": "", "none": ""} {
		if got := netdevOf(class, device); got != want {
			t.Errorf("%s: %q, want %q", device, got, want)
		}
	}
}

// What no interface of this host is or has is refused before the module gets it.
func TestSourceIsChecked(t *testing.T) {
	c := Command{Role: Client, Addr: testAddr}
	for source, want := range map[string]string{"": "", "127.0.0.1": "127.0.0.1", "lo": "127.0.0.1"} {
		c.Source = source
		if got, err := c.WithSourceAddress(); err != nil || got.Source != want {
			t.Errorf("%q: %q, %v, want %q", source, got.Source, err, want)
		}
	}
	c.Source = "203.0.113.77"
	if _, err := (FS{}).Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no network interface of this host has this address") {
		t.Error(err)
	}
}
