// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

func of(n int) *int { return &n }

func options() Options {
	return Options{Transport: "tcp", Addr: netip.MustParseAddr("10.0.0.1"), Port: 4420, NQN: "nqn.a"}
}

func TestOptions(t *testing.T) {
	o := options()
	if got, want := o.String(), "transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=nqn.a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	o.HostNQN, o.HostID, o.HostAddr, o.HostIface = "nqn.h", "6b0fac7c-d420-460a-87e2-193929fff36d", netip.MustParseAddr("fd00::1"), "eth0"
	o.IOQueues, o.WriteQueues, o.PollQueues, o.QueueSize = of(1), of(2), of(3), of(16)
	o.KeepAlive, o.CtrlLossTMO, o.ReconnectDelay, o.TOS = of(0), of(-1), of(4), of(5)
	o.HeaderDigest, o.DataDigest, o.DuplicateConn, o.TLS, o.DisableSQFlow, o.FastIOFail = true, true, true, true, true, of(15)
	o.Secret, o.CtrlSecret = secret, secret
	want := "transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn=nqn.a,hostnqn=nqn.h,hostid=6b0fac7c-d420-460a-87e2-193929fff36d,host_iface=eth0," +
		"dhchap_secret=" + secret + ",dhchap_ctrl_secret=" + secret + ",host_traddr=fd00::1,nr_io_queues=1,nr_write_queues=2,nr_poll_queues=3,queue_size=16,keep_alive_tmo=0,ctrl_loss_tmo=-1,reconnect_delay=4,fast_io_fail_tmo=15,tos=5," +
		"hdr_digest,data_digest,tls,disable_sqflow,duplicate_connect"
	if err := o.Check(); err != nil || o.String() != want {
		t.Errorf("%v, %s, want %s", err, o, want)
	}
}

// secret is one of nvme gen-dhchap-key.
const secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

// A secret with a mistake is refused, and the error does not have it.
func TestSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"": "", secret: "", strings.Replace(secret, "zaw3", "zaw4", 1): "checksum", strings.TrimSuffix(secret, ":"): "must be like", "DHHC-1:04:x:": "must be like",
		"DHHC-1:00:aGVsbG8=:": "32, 48 or 64 bytes", "DHHC-1:00:?:": "Base64", "hunter2": "must be like",
	} {
		o := options()
		o.Secret = text
		err := o.Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if key := strings.TrimPrefix(text, "DHHC-1:"); err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("the error has the key: %v", err)
		}
	}
}

// An option that the kernel lacks is named before anything is changed.
func TestUnsupportedOptions(t *testing.T) {
	o := options()
	o.Secret, o.KeepAlive = secret, of(5)
	has := "instance=-1,cntlid=-1,transport=%s,traddr=%s,trsvcid=%s,nqn=%s,keep_alive_tmo=%d\n"
	if lacks := o.unsupported(has); len(lacks) != 1 || lacks[0] != "dhchap_secret" {
		t.Errorf("lacks %q", lacks)
	}
	err := lacking(o, o.unsupported(has))
	if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "no dhchap_secret") || !strings.Contains(kernel.Fix(err), "CONFIG_NVME_HOST_AUTH") {
		t.Errorf("%v, fix %q", err, kernel.Fix(err))
	}
	if lacks := o.unsupported("instance=-1,cntlid=-1"); len(lacks) > 0 {
		t.Errorf("a kernel that does not say what it has lacks %q", lacks)
	}
}

// Referrals are followed once, also in a circle; what cannot be reached does not hide the rest.
func TestDiscoverAll(t *testing.T) {
	record := func(kind, addr, nqn string) Record {
		return Record{Transport: "tcp", Kind: kind, Addr: addr, Service: "4420", NQN: nqn}
	}
	logs := map[string][]Record{
		"10.0.0.1": {record(kindCurrent, "10.0.0.1", discoveryNQN), record(kindNVMe, "10.0.0.1", "nqn.a"), record(kindReferral, "10.0.0.2", discoveryNQN),
			record(kindReferral, "10.0.0.3", discoveryNQN), record(kindReferral, "host", discoveryNQN)},
		"10.0.0.2": {record(kindReferral, "10.0.0.1", discoveryNQN), record(kindNVMe, "10.0.0.1", "nqn.a"), record(kindNVMe, "10.0.0.2", "nqn.a")},
	}
	asked := 0
	paths, err := discoverAll(options(), func(o Options) (Discovery, error) {
		asked++
		records, found := logs[o.Addr.String()]
		if !found {
			return Discovery{}, unix.ECONNREFUSED
		}
		return Discovery{Records: records}, nil
	})
	want := []Record{record(kindNVMe, "10.0.0.1", "nqn.a"), record(kindNVMe, "10.0.0.2", "nqn.a")}
	if !reflect.DeepEqual(paths, want) || !errors.Is(err, unix.ECONNREFUSED) || asked != 3 {
		t.Errorf("%d asked: %+v, %v", asked, paths, err)
	}
}

// The options for a record are checked: it comes from the network. TLS that was asked for is not left out.
func TestOptionsAtRecord(t *testing.T) {
	record := Record{Transport: "rdma", Addr: "10.0.0.7", Service: "4421", NQN: "nqn.b"}
	o := options()
	o.HeaderDigest, o.HostIface = true, "eth0"
	if at, err := o.At(record); err != nil || at.String() != "transport=rdma,traddr=10.0.0.7,trsvcid=4421,nqn=nqn.b" {
		t.Errorf("%s, %v", at, err)
	}
	for want, change := range map[string]func(*Options, *Record){
		"--tls is for":        func(o *Options, _ *Record) { o.TLS = true },
		"contain a comma":     func(_ *Options, r *Record) { r.NQN = "nqn.b,hostnqn=x" },
		"must be rdma or tcp": func(_ *Options, r *Record) { r.Transport = "fc" },
		"must be an IP":       func(_ *Options, r *Record) { r.Addr = "host" },
		"must be 1 to 65535":  func(_ *Options, r *Record) { r.Service = "0" },
	} {
		o, r := options(), record
		change(&o, &r)
		if _, err := o.At(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestOptionErrors(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--transport fc":      func(o *Options) { o.Transport = "fc" },
		"--traddr is needed":  func(o *Options) { o.Addr = netip.Addr{} },
		"--trsvcid 0":         func(o *Options) { o.Port = 0 },
		"for --transport tcp": func(o *Options) { o.Transport, o.DataDigest = "rdma", true },
		"contain a comma":     func(o *Options) { o.NQN = "nqn.a,hostnqn=b" },
		"not a UUID":          func(o *Options) { o.HostID = "1" },
		"--queue-size 8":      func(o *Options) { o.QueueSize = of(8) },
		"--ctrl-loss-tmo -2":  func(o *Options) { o.CtrlLossTMO = of(-2) },
		"--nr-io-queues 0":    func(o *Options) { o.IOQueues = of(0) },
		"--fast-io-fail-tmo":  func(o *Options) { o.FastIOFail = of(-2) },
		"--tls is for":        func(o *Options) { o.Transport, o.TLS = "rdma", true },
		"needs --dhchap-sec":  func(o *Options) { o.CtrlSecret = secret },
	} {
		o := options()
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The kernel refuses two host NQNs with the same host ID.
func TestHostID(t *testing.T) {
	const uuid = "6b0fac7c-d420-460a-87e2-193929fff36d"
	if got := hostIDOf("nqn.2014-08.org.nvmexpress:uuid:" + uuid); got != uuid {
		t.Errorf("%s, want %s", got, uuid)
	}
	a, b := hostIDOf("nqn.a"), hostIDOf("nqn.b")
	if a == b || !isUUID.MatchString(a) || a != hostIDOf("nqn.a") {
		t.Errorf("identifiers %s and %s", a, b)
	}
}

func discoveryPage() []byte {
	page := make([]byte, 3*recordSize)
	binary.LittleEndian.PutUint64(page, 7)
	binary.LittleEndian.PutUint64(page[8:], 2)
	for i, r := range []struct {
		kind byte
		nqn  string
	}{{3, discoveryNQN}, {2, "nqn.a"}} {
		e := page[(i+1)*recordSize:]
		copy(e, []byte{1, 2, r.kind, 4, 9, 0})
		copy(e[32:], "4420    ")
		copy(e[256:], r.nqn+"\x00junk")
		copy(e[512:], "fd00::1")
	}
	return page
}

func TestParseDiscovery(t *testing.T) {
	got, err := ParseDiscovery(discoveryPage())
	record := Record{
		Transport: "rdma", Family: "ipv6", Kind: kindCurrent, Security: "not specified, sq flow control disable supported", Port: 9,
		Service: "4420", NQN: discoveryNQN, Addr: "fd00::1",
	}
	disk := record
	disk.Kind, disk.NQN = kindNVMe, "nqn.a"
	if want := (Discovery{7, []Record{record, disk}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got.Records[0].IsSubsystem() || !got.Records[1].IsSubsystem() {
		t.Error("IsSubsystem is wrong for the discovery service or for the disk")
	}
	page := discoveryPage()
	page[recordSize] = 77
	if got, err := ParseDiscovery(page); err != nil || got.Records[0].Transport != "type 77" {
		t.Errorf("unknown transport: %+v, %v", got, err)
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"no header":     func(p []byte) []byte { return p[:100] },
		"fewer records": func(p []byte) []byte { return p[:2*recordSize] },
		"many records":  func(p []byte) []byte { binary.LittleEndian.PutUint64(p[8:], 1<<63); return p },
		"format 1":      func(p []byte) []byte { p[16] = 1; return p },
	} {
		if _, err := ParseDiscovery(spoil(discoveryPage())); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func put(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestControllers(t *testing.T) {
	root := t.TempDir()
	s := NewSysfs(root)
	if got, err := s.Controllers(); err != nil || len(got) != 0 {
		t.Errorf("without a driver: %v, %v", got, err)
	}
	put(t, root, map[string]string{
		"class/nvme/nvme0/transport": "pcie", "class/nvme/nvme0/subsysnqn": "nqn.local", "class/nvme/nvme0/nvme0n1/nsid": "1",
		"class/nvme/nvme10/transport": "rdma", "class/nvme/nvme10/subsysnqn": "nqn.a", "class/nvme/nvme10/queue_count": "3", "class/nvme/nvme10/sqsize": "127",
		"class/nvme/nvme10/address": "traddr=10.0.0.1,trsvcid=4420", "class/nvme/nvme10/state": "live", "class/nvme/nvme10/kato": "5",
		"class/nvme/nvme10/nvme4c10n2/nsid": "2", "class/nvme/nvme10/hwmon0/name": "nvme",
		"class/block/nvme4n2/nsid": "2", "class/block/nvme4n2/uuid": "u", "class/block/nvme4n2/size": "8", "class/block/nvme4n2/queue/logical_block_size": "4096",
	})
	got, err := s.Controllers()
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := Controller{
		Name: "nvme10", NQN: "nqn.a", Transport: "rdma", Address: "traddr=10.0.0.1,trsvcid=4420", State: "live", IOQueues: 2, QueueSize: 128, KeepAlive: 5,
		Namespaces: []Disk{{Name: "nvme4n2", Path: "nvme4c10n2", NSID: 2, UUID: "u", Size: 4096, BlockSize: 4096}},
	}
	if !reflect.DeepEqual(got[1], want) {
		t.Errorf("%+v, want %+v", got[1], want)
	}
	if got[0].IsFabric() || !got[1].IsFabric() || got[0].Namespaces[0].Device() != "/dev/nvme0n1" {
		t.Errorf("%+v", got[0])
	}
	if !want.Has("nvme4n2") || !want.Has("nvme4c10n2") || want.Has("nvme4n1") {
		t.Error("Has is wrong")
	}
}

// The errors and messages are those of kernels 6.1 and 6.12, as seen in the suite test/guest/nvme.
func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		err   error
		log   kernel.Lines
		kind  error
		cause string
		fix   string
	}{
		{unix.EIO, kernel.Lines{`nvme nvme0: Connect Invalid Data Parameter, subsysnqn "nqn.a"`}, unix.ECONNREFUSED, "no such NQN", "nvme discover --transport tcp --traddr 10.0.0.1"},
		{unix.EIO, kernel.Lines{"nvme nvme0: Connect for subsystem nqn.a is not allowed, hostnqn: nqn.h"}, unix.ECONNREFUSED, "does not allow this host, nqn.h", "--allow-host nqn.h"},
		{unix.ECONNREFUSED, kernel.Lines{"nvme nvme0: failed to connect socket: -111"}, unix.ECONNREFUSED, "nothing listens", "target list"},
		{unix.ECONNRESET, kernel.Lines{"nvme nvme0: Connect rejected: status 8 (invalid service ID)."}, unix.ECONNREFUSED, "nothing listens", "target list"},
		{unix.EIO, kernel.Lines{"nvme nvme0: qid 0: authentication setup failed"}, unix.ENOKEY, "only with its DH-HMAC-CHAP key", "--dhchap-secret"},
		{unix.EALREADY, nil, unix.EALREADY, "already", "--duplicate-connect"},
		{unix.EINVAL, kernel.Lines{"nvme_fabrics: no handler found for transport tcp."}, kernel.ErrNoModule, "nvme-tcp is not loaded", "modprobe nvme-tcp"},
		{unix.EINVAL, kernel.Lines{"nvme_fabrics: found same hostid x but different hostnqn y"}, unix.EINVAL, "found same hostid", "--hostid"},
		{unix.EINVAL, kernel.Lines{"nvme_fabrics: unknown parameter or missing value"}, unix.EINVAL, "unknown parameter", "options"},
		{unix.ETIMEDOUT, kernel.Lines{"nvme nvme0: failed to connect socket: -110"}, unix.ETIMEDOUT, "does not answer", "ping 10.0.0.1"},
		{unix.ENOMEM, kernel.Lines{"nvme nvme0: no memory"}, unix.ENOMEM, "no memory", "doctor --peer"},
	} {
		o := options()
		o.HostNQN = "nqn.h"
		err := explain(o, tc.err, tc.log)
		if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.cause) || !strings.Contains(kernel.Fix(err), tc.fix) {
			t.Errorf("%v, fix %q: want %v, %q, %q", err, kernel.Fix(err), tc.kind, tc.cause, tc.fix)
		}
	}
}
