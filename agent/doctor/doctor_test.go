// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/host/distro"
	"krping/agent/host/rdmalink"
	"krping/agent/service/volumes"
	"krping/proc"
)

// want checks the level of a finding, and that its text contains the words.
func want(t *testing.T, f Finding, level Level, words ...string) {
	t.Helper()
	text := strings.Join([]string{f.Check, f.Found, f.Cause, f.Fix}, "\n")
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in the finding:\n%s", word, text)
		}
	}
	if f.Level != level {
		t.Errorf("level %s, want %s:\n%s", f.Level, level, text)
	}
	remade := regexp.MustCompile(`krpingctl link del (\S+) && krpingctl link add \S+`) // makes no connections, or serves nothing
	if fix := remade.ReplaceAllString(f.Fix, ""); !isHarmless(fix) {
		t.Errorf("the fix ends or takes away what may be in use:\n%s", text)
	}
	if f.Level != OK && (f.Cause == "" || f.Fix == "") {
		t.Errorf("has no cause or no fix:\n%s", text)
	}
}

func TestParseModuleList(t *testing.T) {
	got := parseModuleList("kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/lib/crc32.ko.xz\n" +
		"updates/dkms/rdma-krping.ko:\nkernel/fs/9p/9p.ko\nno module\n")
	for _, name := range []string{"rdma_rxe", "rdma_krping", "9p"} {
		if !got[name] {
			t.Errorf("%s is not in %v", name, got)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d modules: %v", len(got), got)
	}
}

func TestModuleFindings(t *testing.T) {
	all := map[string]bool{"ib_core": true, "rdma_cm": true, "ib_uverbs": true, "rdma_ucm": true, "rdma_rxe": true}
	set := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, name := range names {
			m[name] = true
		}
		return m
	}
	for _, tc := range []struct {
		name  string
		m     modules
		level Level
		words []string
	}{
		{"loaded", modules{loaded: set(krping), version: "0.1.0", taint: "OE"}, OK, []string{"0.1.0", "without a signature"}},
		{"forced", modules{loaded: set(krping), taint: "F"}, Warning, []string{"rmmod"}},
		{"installed", modules{installed: set(krping)}, Problem, []string{"modprobe rdma_krping"}},
		{"not built", modules{release: "6.1.0", headers: true}, Problem, []string{"make -C kmod modules && modprobe"}},
		{"not built, CRC in the kernel", modules{headers: true, installed: all}, Problem, []string{"modprobe -a rdma_cm &&"}},
		{"not built, CRC in a module", modules{headers: true, installed: set("libcrc32c")}, Problem, []string{"modprobe -a rdma_cm libcrc32c &&"}},
		{"no headers", modules{distro: distro.Parse("ID=debian", "6.1.0-9-amd64")}, Problem, []string{"apt install linux-headers-6.1.0-9-amd64 && make"}},
		{"no headers, SUSE", modules{distro: distro.Parse("ID=sles\nID_LIKE=suse", "6.4.0-1-default")}, Problem, []string{"zypper install kernel-default-devel && make"}},
		{"unsupported kernel", modules{release: "5.15.0-31-generic"}, Problem, []string{"only for 6.1 to 7.3"}},
	} {
		t.Run(tc.name, func(t *testing.T) { want(t, tc.m.own(), tc.level, tc.words...) })
	}
	for _, tc := range []struct {
		name  string
		m     modules
		level Level
		word  string
	}{
		{"all", modules{installed: all, loaded: all}, OK, "krping-bridge"},
		{"not loaded", modules{installed: all}, Note, "modprobe -a rdma_ucm ib_uverbs"},
		{"ubuntu", modules{release: "6.14.0-1-generic", distro: distro.Parse("ID=ubuntu", "6.14.0-1-generic"), installed: set()}, Problem, "apt install linux-modules-extra-6.14.0-1-generic"},
		{"cloud", modules{release: "6.1.0-9-cloud-amd64", distro: distro.Parse("ID=debian", "6.1.0-9-cloud-amd64"), installed: set("ib_core", "rdma_cm", "ib_uverbs", "rdma_ucm")}, Warning, "apt install linux-image-" + runtime.GOARCH + ", and boot"},
		{"rhel", modules{distro: distro.Parse("ID=rocky\nID_LIKE=rhel", "5.14.0-1.el9.x86_64"), installed: set("ib_core", "rdma_cm")}, Warning, "dnf install kernel-modules-5.14.0-1.el9.x86_64"},
		{"own kernel", modules{installed: set("ib_core", "rdma_cm")}, Warning, "CONFIG_INFINIBAND_USER_ACCESS"},
		{"unknown", modules{release: "6.1.0"}, Warning, "modules.dep"},
		{"arch, upgraded", modules{distro: distro.Parse("ID=arch", "6.14.2-arch1-1")}, Warning, "pacman -S linux, then"},
	} {
		t.Run(tc.name, func(t *testing.T) { want(t, tc.m.drivers()[0], tc.level, tc.word) })
	}
	m := modules{version: "0.1.0"}
	if findings := append(m.versionFindings("0.1.0"), modules{}.versionFindings("0.2.0")...); len(findings) != 0 {
		t.Errorf("the same version, or no module: %v", findings)
	}
	want(t, m.versionFindings("0.2.0")[0], Note, "is 0.1.0, this program is 0.2.0")
	signed := modules{loaded: set(), signedOnly: true, release: "6.1.0"}.findings()
	want(t, signed[1], Warning, "mokutil --import /var/lib/dkms/mok.pub", "sign-file")
	signed = modules{loaded: set(), signedOnly: true, distro: distro.Parse("ID=ubuntu", "6.8.0")}.findings()
	want(t, signed[1], Warning, "mokutil --import /var/lib/shim-signed/mok/MOK.der")
}

func TestIsLockedDown(t *testing.T) {
	if isLockedDown("[none] integrity confidentiality") || !isLockedDown("none [integrity] confidentiality") || isLockedDown("") {
		t.Error("every mode but none is a lockdown")
	}
}

func TestSupportedKernels(t *testing.T) {
	for release, yes := range map[string]bool{"6.0.9": false, "6.1.0-56-amd64": true, "6.5.0": true, "6.10": true, "7.0": true, "7.3.4+deb13-amd64": true, "7.4.0-rc1": false, "7.30": false, "5.15": false, "5.14.0-503.el9": false, "odd": true} {
		if Supported(release) != yes {
			t.Errorf("Supported(%s) = %v", release, !yes)
		}
	}
}

func addrs(list ...string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, a := range list {
		prefixes = append(prefixes, netip.MustParsePrefix(a))
	}
	return prefixes
}

// lab is a host without problems, like the lab's VMs.
func lab() host {
	return host{
		netdevs: []netdev{
			{name: "lo", index: 1, up: true, loopback: true, mtu: 65536, addrs: addrs("127.0.0.1/8")},
			{name: "eth0", index: 2, up: true, carrier: true, ethernet: true, mtu: 4300, addrs: addrs("192.168.77.1/24", "fd77::1/64")},
			{name: "dummy7", index: 3, up: true, carrier: true, mtu: 1500, addrs: addrs("10.7.0.1/24")},
		},
		devices: []device{{name: "rxe0", kind: rxe, ports: []port{{number: 1, state: "4: ACTIVE", netdev: "eth0", gids: []gid{
			{0, netip.MustParseAddr("fe80::1"), "eth0", "RoCE v2"}, {1, netip.MustParseAddr("192.168.77.1"), "eth0", "RoCE v2"},
		}}}}},
		stack:  rdmalink.Netdevs{{Name: "lo", Kind: "device"}, {Name: "eth0", Kind: "device"}, {Name: "dummy7", Kind: "dummy"}},
		spaces: namespaces{mode: "shared"},
	}
}

func TestReadDevice(t *testing.T) {
	class := t.TempDir()
	for name, text := range map[string]string{
		"parent": "eth0\n", "node_type": "1: CA\n", "ports/1/state": "4: ACTIVE\n",
		"ports/1/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n", "ports/1/gids/1": "0000:0000:0000:0000:0000:ffff:c0a8:4d01\n",
		"ports/1/gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n", "ports/1/gids/3": "fe80:0000:0000:0000:0000:0000:0000:0000\n",
		"ports/1/gid_attrs/ndevs/0": "eth0\n", "ports/1/gid_attrs/types/0": "RoCE v2\n",
		"ports/1/gid_attrs/ndevs/1": "eth0\n", "ports/1/gid_attrs/types/1": "RoCE v2\n",
	} {
		file := filepath.Join(class, "rxe0", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := fmt.Sprint(readDevice(class, "rxe0")), fmt.Sprint(lab().devices[0]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestDeviceFindings(t *testing.T) {
	h := lab()
	want(t, h.deviceFindings()[0], OK, "rxe0 on eth0 is ACTIVE")
	want(t, h.gidFindings()[0], OK, "192.168.77.1 (GID 1)")
	want(t, h.mtuFindings()[0], OK, "4096 bytes")

	h.devices[0].ports[0].gids = h.devices[0].ports[0].gids[:1]
	want(t, h.gidFindings()[0], Warning, "only fe80::1", "ip addr add")
	h.devices[0].ports[0].gids = nil
	want(t, h.gidFindings()[0], Problem, "no address")

	h.devices[0].ports[0].state, h.netdevs[1].up = "1: DOWN", false
	want(t, h.deviceFindings()[0], Problem, "rxe0 on eth0 is DOWN", "ip link set eth0 up")
	h.netdevs[1].up, h.netdevs[1].carrier = true, false
	want(t, h.deviceFindings()[0], Problem, "no carrier", "cable")
	h.devices = append(h.devices, device{name: "mlx5_0", ports: []port{{number: 1, state: "1: DOWN"}}})
	want(t, h.deviceFindings()[1], Warning, "mlx5_0 is DOWN", "cable")

	h = lab()
	h.devices[0].broken = true
	want(t, h.deviceFindings()[0], Problem, "rxe0 on eth0 is ACTIVE, but makes no connections", "krpingctl link del rxe0 && krpingctl link add rxe0 --netdev eth0")
	h.devices[0].connected = 3
	want(t, h.deviceFindings()[0], Problem, "3 connections that it had before still work", "when these may be interrupted")
	h.devices[0].kind = ""
	want(t, h.deviceFindings()[0], Problem, "makes no connections", "in a maintenance window", "devlink dev reload")

	h = lab()
	h.devices = nil
	want(t, h.deviceFindings()[0], Problem, "no RDMA device", "krpingctl link add rxe0 --netdev eth0")
	h.spaces = namespaces{mode: exclusive, others: []namespace{{name: "blue", devices: 1}}}
	want(t, h.deviceFindings()[0], Problem, "network namespace blue has them", "ip netns exec blue krpingctl doctor", "rdma system set netns shared")
}

func TestInfiniBand(t *testing.T) {
	port1, own := netip.MustParseAddr("fe80::2:c903:1"), netip.MustParseAddr("10.0.0.1")
	h := host{
		netdevs: []netdev{{name: "ib0", up: true, carrier: true, mtu: 2044, gid: port1, addrs: addrs("10.0.0.1/24")}},
		devices: []device{{name: "mlx4_0", ports: []port{{number: 1, state: "4: ACTIVE", infiniband: true, gids: []gid{{addr: port1, kind: "IB/RoCE v1"}}}}}},
	}
	h.nameNetdevs()
	want(t, h.deviceFindings()[0], OK, "mlx4_0 on ib0 is ACTIVE")
	want(t, h.addressFindings(own)[0], OK, "10.0.0.1 is on ib0, served by mlx4_0")
	if f := append(h.gidFindings(), h.mtuFindings()...); f != nil {
		t.Errorf("findings that are for RoCE only: %v", f)
	}
	h.devices[0].ports[0].state = "2: INIT"
	want(t, h.deviceFindings()[0], Problem, "opensm")
}

func TestMTU(t *testing.T) {
	for mtu, size := range map[int]int{9000: 4096, 4300: 4096, 4192: 4096, 4191: 2048, 1500: 1024, 1119: 512, 352: 256, 351: 0} {
		if got := roceMTU(mtu); got != size {
			t.Errorf("MTU %d: %d, want %d", mtu, got, size)
		}
	}
	want(t, lab().mtuFinding("rxe0", netdev{name: "eth0", mtu: 1500}), Note, "1024", "mtu 4300")
	want(t, lab().mtuFinding("rxe0", netdev{name: "eth0", mtu: 1000}), Warning, "512", "mtu 1500")
	want(t, lab().mtuFinding("rxe0", netdev{name: "eth0", mtu: 300}), Problem, "mtu 1500")
}

func TestAddress(t *testing.T) {
	h := lab()
	check := func(addr string) Finding { return h.addressFindings(netip.MustParseAddr(addr))[0] }
	want(t, check("192.168.77.1"), OK, "eth0, served by rxe0")
	want(t, check("10.7.0.1"), Problem, "dummy7, which has no RDMA device", "krpingctl link add rxe1 --netdev dummy7")
	want(t, check("127.0.0.1"), Problem, "lo, which has no", "another network device")
	want(t, check("192.168.77.9"), Problem, "not an address of this host", "ip addr add 192.168.77.9/24 dev eth0; or use 192.168.77.1")
	want(t, check("1.2.3.4"), Problem, "ip addr add 1.2.3.4/PREFIX")
	h.spaces.closed = 2
	want(t, check("1.2.3.4"), Problem, "2 other network namespaces")
	h.spaces.others = []namespace{{name: "blue", addrs: addrs("1.2.3.4/8")}, {addrs: addrs("1.2.3.5/8")}}
	want(t, check("1.2.3.4"), Problem, "network namespace blue", "ip netns exec blue krpingctl")
	want(t, check("1.2.3.5"), Problem, "first network namespace", "nsenter --net=/proc/1/ns/net krpingctl")
	h.netdevs[1].up, h.devices[0].ports[0].gids = false, nil
	want(t, check("192.168.77.1"), Problem, "eth0 is down", "ip link set eth0 up")
	if f := h.addressFindings(netip.Addr{}); f != nil {
		t.Errorf("findings without an address to check: %v", f)
	}
}

func TestNamespaceMode(t *testing.T) {
	h := lab()
	want(t, h.namespaceFindings()[0], OK, "shared")
	h.spaces.mode = exclusive
	want(t, h.namespaceFindings()[0], Note, "rdma system set netns shared")
}

func TestRoute(t *testing.T) {
	h, peer := lab(), netip.MustParseAddr("192.168.77.2")
	for _, tc := range []struct {
		name  string
		addr  string
		r     route
		level Level
		words []string
	}{
		{"direct", "192.168.77.1", route{netdev: "eth0"}, OK, []string{"through eth0, RDMA device rxe0"}},
		{"gateway", "", route{netdev: "eth0", gateway: netip.MustParseAddr("192.168.77.254")}, OK, []string{"by 192.168.77.254"}},
		{"own", "", route{local: true, netdev: "lo"}, OK, []string{"this host"}},
		{"none", "", route{err: unix.ENETUNREACH}, Problem, []string{"ip route add"}},
		{"no RDMA", "", route{netdev: "dummy7"}, Problem, []string{"link add rxe1 --netdev dummy7", "ip route add 192.168.77.2 dev eth0"}},
		{"other address", "10.7.0.1", route{netdev: "eth0"}, Warning, []string{"src 10.7.0.1"}},
		{"MTU", "", route{netdev: "eth0", mtu: 1500}, Warning, []string{"ip link set eth0 mtu 1500"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := Options{Peer: peer}
			if tc.addr != "" {
				o.Addr = netip.MustParseAddr(tc.addr)
			}
			want(t, h.routeFinding(o, tc.r), tc.level, tc.words...)
		})
	}
}

func TestNeighbour(t *testing.T) {
	for state, level := range map[int]Level{
		netlink.NUD_REACHABLE: OK, netlink.NUD_STALE: OK, netlink.NUD_PERMANENT: OK, netlink.NUD_NONE: Warning,
		netlink.NUD_INCOMPLETE: Problem, netlink.NUD_FAILED: Problem,
	} {
		want(t, neighbourFinding(netip.MustParseAddr("192.168.77.2"), "eth0", state), level, "192.168.77.2", "eth0")
	}
}

func TestPath(t *testing.T) {
	peer, eth0 := netip.MustParseAddr("192.168.77.2"), netdev{name: "eth0", mtu: 4300}
	want(t, pathFinding(peer, eth0, 4096, 4096), OK, "4096")
	want(t, pathFinding(peer, eth0, 4096, 1024), Problem, "with 4096 bytes", "those with 1024 do", "ip link set eth0 mtu 1500", "mtu 4300")
	want(t, pathFinding(peer, eth0, 4096, 128), Problem, "no RoCE packet", "ip link set eth0 mtu 360")
}

func TestEcho(t *testing.T) {
	e, err := newEcho(netip.MustParseAddr("127.0.0.1"))
	if errors.Is(err, unix.EPERM) {
		return // an unprivileged user has no raw socket
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.conn.Close()
	e.timeout = time.Minute // also on a busy machine; the kernel refuses a packet above the MTU at once
	if !e.answered(4096) || e.answered(65536) {
		t.Error("lo must answer 4096 bytes, and not more than its MTU")
	}
}

func TestPeer(t *testing.T) {
	o := Options{Peer: netip.MustParseAddr("192.168.77.2"), Port: 9999}
	failed := func(errno unix.Errno, reasons ...string) error {
		return &proc.CommandError{Command: "client", Errno: errno, Reasons: reasons}
	}
	for _, tc := range []struct {
		err   error
		level Level
		words []string
	}{
		{nil, OK, []string{"192.168.77.2 port 9999 answered"}},
		{failed(unix.ENOENT), OK, []string{"this version"}},
		{failed(unix.EPROTONOSUPPORT), Problem, []string{"another version"}},
		{failed(unix.ECONNREFUSED, "the peer rejected the connection: invalid service ID"), Warning, []string{"reachable, but nothing listens", "krpingctl server --addr 192.168.77.2 --port 9999"}},
		{failed(unix.ECONNREFUSED, "consumer reject"), Warning, []string{"refused", "consumer reject"}},
		{failed(unix.ETIMEDOUT), Problem, []string{"not reachable"}},
		{failed(unix.EHOSTUNREACH), Problem, []string{"not reachable"}},
		{failed(unix.EADDRNOTAVAIL), Problem, []string{"no RDMA device of this host"}},
		{failed(unix.EBADMSG), Problem, []string{"krpingctl dmesg"}},
		{&os.PathError{Op: "open", Path: "/proc/krping", Err: unix.EACCES}, Warning, []string{"permission denied"}},
	} {
		want(t, peerFinding(o, tc.err), tc.level, tc.words...)
	}
}

func TestKernel(t *testing.T) {
	want(t, memlockFinding(unix.RLIM_INFINITY, false), OK, "unlimited")
	want(t, memlockFinding(65536, true), OK, "CAP_IPC_LOCK")
	want(t, memlockFinding(65536, false), Warning, "64 KiB", "ulimit -l")
	want(t, btfFinding(true, ""), OK)
	want(t, btfFinding(false, "x\n# CONFIG_DEBUG_INFO_BTF is not set\n"), Warning, "was built without")
	want(t, btfFinding(false, "x\nCONFIG_DEBUG_INFO_BTF=y\n"), Warning, "sysfs")
	want(t, btfFinding(false, ""), Warning, "probably")
}

func TestUnchecked(t *testing.T) {
	f := unchecked("x", fmt.Errorf("read: %w", unix.EPERM))
	want(t, f, Warning, "operation not permitted")
	want(t, f.denied("this needs root", 1000), Warning, "this needs root", "sudo krpingctl doctor")
	want(t, f.denied("this process is root without CAP_NET_ADMIN", 0), Warning, "without CAP_NET_ADMIN", "on the host")
	if f := f.denied("", 0); strings.Contains(f.Cause+f.Fix, "root") {
		t.Errorf("root is told that it needs root: %+v", f)
	}
	if f := unchecked("x", errors.New("odd")); f.Level != Warning || f.Cause != "odd" {
		t.Errorf("%+v", f)
	}
}

// attribute is a netlink attribute of fewer than 252 bytes.
func attribute(kind byte, value ...byte) []byte {
	b := append([]byte{byte(4 + len(value)), 0, kind, 0}, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func TestBrokenGSI(t *testing.T) {
	const rc, gsi, init, sends, failed = 2, 1, 1, 3, 6
	for _, test := range []struct {
		kind, state byte
		want        queues
	}{{gsi, sends, queues{}}, {gsi, failed, queues{broken: true}}, {rc, failed, queues{}}, {rc, sends, queues{connected: 1}}, {rc, init, queues{}}} {
		entry := slices.Concat(attribute(attrResType, test.kind), attribute(attrResState, test.state))
		message := attribute(attrResQP, attribute(20, entry...)...)
		var got []queues
		entries(message, attrResQP, func(entry []byte) {
			q := queues{}
			q.add(entry)
			got = append(got, q)
		})
		if !slices.Equal(got, []queues{test.want}) {
			t.Errorf("type %d, state %d: %v, want one entry, %v", test.kind, test.state, got, test.want)
		}
		for n := range len(entry) - 4 { // without the state
			q := queues{}
			if q.add(entry[:n]); q != (queues{}) {
				t.Errorf("type %d, state %d: %v by its first %d bytes", test.kind, test.state, q, n)
			}
		}
	}
}

func TestListeners(t *testing.T) {
	sockaddr := func(port byte) []byte {
		return append([]byte{unix.AF_INET, 0, 0x27, port, 192, 168, 77, 1}, make([]byte, 24)...)
	}
	listens := attribute(31, slices.Concat(attribute(attrResPID, 7, 0, 0, 0), attribute(attrResSrcAddr, sockaddr(0x0f)...))...)
	module := attribute(31, slices.Concat(attribute(attrResKernName, 'k', 'r', 0), attribute(attrResSrcAddr, sockaddr(0x0e)...))...)
	connected := attribute(31, slices.Concat(attribute(attrResSrcAddr, sockaddr(0x0f)...), attribute(attrResDstAddr, sockaddr(1)...))...)
	message := slices.Concat(attribute(1, 0, 0, 0, 0), attribute(attrResCMID, slices.Concat(listens, module, connected)...))
	parse := func(message []byte) (got []listener) {
		entries(message, attrResCMID, func(entry []byte) {
			if l, listens := parseListener(entry); listens {
				got = append(got, l)
			}
		})
		return got
	}
	got := parse(message)
	if len(got) != 2 || got[0].pid != 7 || got[0].addr.String() != "192.168.77.1:9999" || got[1].name != "kr" {
		t.Fatalf("%+v", got)
	}
	for n := range message {
		parse(message[:n]) // must not panic
	}
	own := netip.MustParseAddr("192.168.77.1")
	if !got[0].takes(own, 9999) || got[0].takes(own, 9998) || got[0].takes(netip.MustParseAddr("10.0.0.1"), 9999) || !got[0].takes(netip.Addr{}, 9999) {
		t.Error("a listener occupies its own address and port only")
	}
	want(t, got[0].finding(), Note, "192.168.77.1:9999 (process 7)", "with another --port", "ps -fp 7")
	want(t, got[1].finding(), Note, "kr listens on 192.168.77.1:9998")
}

func TestTargets(t *testing.T) {
	got := bridgeEndpoints(7, "krping-bridge\x00--ping=10.0.0.1:9900\x00--listen\x00[fd77::1]\x00--store\x00mem:\x00--listen\x00nowhere\x00--listen\x00")
	if len(got) != 2 || got[0].addr.String() != "10.0.0.1:9900" || got[1].addr.String() != "[fd77::1]:9999" {
		t.Fatalf("%+v", got)
	}
	h := host{netdevs: []netdev{{name: "eth0", up: true, carrier: true, addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd77::1/64")}}}}
	listens := listener{pid: 7, addr: netip.MustParseAddrPort("10.0.0.1:9900")}
	another := listener{pid: 8, addr: netip.MustParseAddrPort("[fd77::1]:9999")}
	f := h.targetFindings(got, []listener{listens, another})
	if len(f) != 1 {
		t.Fatalf("%+v", f)
	}
	want(t, f[0], Problem, "krping-bridge (process 7) does not listen on [fd77::1]:9999", "eth0, which has no RDMA device", "link add rxe0 --netdev eth0")
	volume := endpoint{target: "volume vol0", addr: netip.MustParseAddrPort("10.0.0.1:9900")}
	f = h.targetFindings([]endpoint{volume, {"krping-bridge (process 9)", 9, netip.MustParseAddrPort("0.0.0.0:9999")}}, []listener{listens})
	if len(f) != 1 {
		t.Fatalf("%+v", f)
	}
	want(t, f[0], Problem, "volume vol0 does not listen on 10.0.0.1:9900")
	h.devices = []device{{name: "rxe0", ports: []port{{netdev: "eth0", gids: []gid{{addr: netip.MustParseAddr("10.0.0.1"), netdev: "eth0"}}}}}}
	want(t, h.targetFindings([]endpoint{volume}, nil)[0], Problem, "once a second", "krpingctl dmesg")
}

func TestRefusedVolumes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "volumes.json")
	if f := volumeFindings(path); len(f) > 0 {
		t.Errorf("without the file: %+v", f)
	}
	known := volumes.New(path, zerolog.Nop())
	if err := errors.Join(known.Set("vol0", volumes.Volume{UUID: "a"}), known.Set("vol1", volumes.Volume{UUID: "b"}), known.Refuse("vol1", "has c, not b")); err != nil {
		t.Fatal(err)
	}
	f := volumeFindings(path)
	if len(f) != 1 || f[0].Level != Problem || !strings.Contains(f[0].Found, "vol1") || f[0].Cause != "has c, not b" || !strings.Contains(f[0].Fix, "krpingctl agent --forget vol1") {
		t.Errorf("%+v", f)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := volumeFindings(path); len(f) != 1 || f[0].Level != Warning || f[0].Fix == "" {
		t.Errorf("broken file: %+v", f)
	}
}
