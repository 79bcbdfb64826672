// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"krping/agent/disk/rawio"
)

const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// Discovery is a discovery log page, in the JSON of `nvme discover -o json`.
type Discovery struct {
	Generation uint64   `json:"genctr"`
	Records    []Record `json:"records"`
}

// Record is one subsystem at one address.
type Record struct {
	Transport string `json:"trtype"` // rdma, tcp, fc, loop
	Family    string `json:"adrfam"` // ipv4, ipv6, ib, fc
	Kind      string `json:"subtype"`
	Security  string `json:"treq"`
	Port      uint16 `json:"portid"`
	Service   string `json:"trsvcid"`
	NQN       string `json:"subnqn"`
	Addr      string `json:"traddr"`
}

// Values of Record.Kind.
const (
	kindNVMe     = "nvme subsystem"
	kindReferral = "discovery subsystem referral"
	kindCurrent  = "current discovery subsystem"
)

// IsSubsystem reports whether the record is an NVMe subsystem, not a discovery service.
func (r Record) IsSubsystem() bool { return r.Kind == kindNVMe }

// Discover returns what the discovery service at an address offers to this host.
func (s Sysfs) Discover(ctx context.Context, o Options) (d Discovery, err error) {
	o.NQN = discoveryNQN
	name, err := s.Connect(ctx, o)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, s.remove(name)) }()
	return readDiscovery("/dev/" + name)
}

// Persistent is Discover without disconnecting: the controller with that name stays, and the target tells it
// when its log changes.
func (s Sysfs) Persistent(ctx context.Context, o Options) (name string, d Discovery, err error) {
	o.NQN = discoveryNQN
	if o.KeepAlive == nil { // else the target ends an idle connection
		o.KeepAlive = new(int)
		*o.KeepAlive = persistentKeepAlive
	}
	if name, err = s.Connect(ctx, o); err != nil {
		return "", d, err
	}
	if d, err = readDiscovery("/dev/" + name); err != nil {
		return "", d, errors.Join(err, s.remove(name))
	}
	return name, d, nil
}

// persistentKeepAlive is the keep-alive timeout of a persistent discovery controller in seconds, as nvme-cli's.
const persistentKeepAlive = 30

// maxReferrals limits how many discovery services DiscoverAll asks.
const maxReferrals = 32

// DiscoverAll returns the subsystems that the discovery service at an address offers, and those that it refers
// to do, each path once. It goes on if one that it refers to fails; those errors are joined.
func (s Sysfs) DiscoverAll(ctx context.Context, o Options) ([]Record, error) {
	return discoverAll(o, func(o Options) (Discovery, error) { return s.Discover(ctx, o) })
}

func discoverAll(first Options, discover func(Options) (Discovery, error)) (paths []Record, err error) {
	asked, offered := map[string]bool{}, map[Record]bool{}
	services := []Options{first}
	for len(services) > 0 && len(asked) < maxReferrals {
		o := services[0]
		services = services[1:]
		where := fmt.Sprintf("%s %v port %d", o.Transport, o.Addr, o.Port)
		if asked[where] {
			continue
		}
		asked[where] = true
		d, failed := discover(o)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		for _, r := range d.Records {
			path := Record{Transport: r.Transport, Addr: r.Addr, Service: r.Service, NQN: r.NQN}
			to, usable := o.At(r)
			switch {
			case r.Kind == kindReferral && usable == nil:
				services = append(services, to)
			case r.IsSubsystem() && !offered[path]:
				offered[path] = true
				paths = append(paths, r)
			}
		}
	}
	return paths, err
}

// At returns the options for the path of a record.
func (o Options) At(r Record) (Options, error) {
	addr, err := netip.ParseAddr(r.Addr)
	if err != nil {
		return o, fmt.Errorf("address %q: must be an IP address", r.Addr)
	}
	port, err := strconv.ParseUint(r.Service, 10, 16)
	if err != nil {
		return o, fmt.Errorf("port %q: must be 1 to 65535", r.Service)
	}
	o.Transport, o.Addr, o.Port, o.NQN = r.Transport, addr, uint16(port), r.NQN
	if o.Transport != "tcp" { // without TLS it must not connect
		o.HeaderDigest, o.DataDigest, o.HostIface = false, false, ""
	}
	return o, o.Check()
}

// maxReads limits the number of attempts to read a page that keeps changing.
const maxReads = 10

func readDiscovery(device string) (Discovery, error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Discovery{}, fmt.Errorf("open %s: %w", device, err)
	}
	defer unix.Close(fd)
	for range maxReads {
		header, err := getLog(fd, 0, recordSize)
		if err != nil {
			return Discovery{}, err
		}
		count := binary.LittleEndian.Uint64(header[8:])
		if count > maxRecords {
			return Discovery{}, fmt.Errorf("the discovery log has %d records, at most %d are supported", count, maxRecords)
		}
		page := header
		for range count {
			record, err := getLog(fd, uint64(len(page)), recordSize)
			if err != nil {
				return Discovery{}, err
			}
			page = append(page, record...)
		}
		again, err := getLog(fd, 0, recordSize)
		if err != nil {
			return Discovery{}, err
		}
		if bytes.Equal(again[:16], header[:16]) { // genctr and numrec
			return ParseDiscovery(page)
		}
	}
	return Discovery{}, fmt.Errorf("the discovery log keeps changing: %w", unix.EAGAIN)
}

// The header of the page and each record have 1024 bytes (NVM Express Base Specification, Discovery
// Log Page, 70h).
const (
	recordSize = 1024
	maxRecords = 4096
)

// passthru is struct nvme_passthru_cmd of include/uapi/linux/nvme_ioctl.h.
type passthru struct {
	opcode, flags    uint8
	_                uint16
	nsid, cdw2, cdw3 uint32
	metadata, addr   uint64
	metadataLen, len uint32
	cdw              [6]uint32 // 10 to 15
	timeoutMS        uint32
	result           uint32
}

const iocAdmin = 3<<30 | uint32(unsafe.Sizeof(passthru{}))<<16 | 'N'<<8 | 0x41 // _IOWR('N', 0x41, struct nvme_passthru_cmd)

// getLog reads length bytes of the discovery log page.
func getLog(fd int, offset uint64, length int) ([]byte, error) {
	const getLogPage, discoveryPage = 0x02, 0x70
	buf, err := rawio.Buffer(length)
	if err != nil {
		return nil, err
	}
	defer rawio.Free(buf)
	dwords := uint32(length/4 - 1) // 0 means 1
	cmd := passthru{
		opcode: getLogPage, addr: uint64(uintptr(unsafe.Pointer(&buf[0]))), len: uint32(length),
		cdw: [6]uint32{dwords<<16 | discoveryPage, dwords >> 16, uint32(offset), uint32(offset >> 32)},
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(iocAdmin), uintptr(unsafe.Pointer(&cmd)))
	runtime.KeepAlive(buf)
	switch {
	case errno != 0:
		return nil, fmt.Errorf("read the discovery log: %w", errno)
	case status != 0:
		return nil, fmt.Errorf("read the discovery log: NVMe status %#x: %w", status, unix.EIO)
	}
	return bytes.Clone(buf), nil
}

// Codes in a record (NVM Express Base Specification, Discovery Log Page Entry).
var (
	transports = map[byte]string{1: "rdma", 2: "fc", 3: "tcp", 254: "loop"}
	families   = map[byte]string{0: "pci", 1: "ipv4", 2: "ipv6", 3: "ib", 4: "fc", 254: "loop"}
	kinds      = map[byte]string{1: kindReferral, 2: kindNVMe, 3: kindCurrent}
	securities = map[byte]string{0: "not specified", 1: "required", 2: "not required"}
)

// ParseDiscovery parses a page: the header and the records.
func ParseDiscovery(page []byte) (Discovery, error) {
	d := Discovery{Records: []Record{}}
	if len(page) < recordSize {
		return d, fmt.Errorf("discovery log has %d bytes, too short for its header", len(page))
	}
	d.Generation = binary.LittleEndian.Uint64(page)
	count := binary.LittleEndian.Uint64(page[8:])
	if have := uint64(len(page)/recordSize - 1); count > have {
		return d, fmt.Errorf("discovery log has %d records, but its header says %d", have, count)
	}
	if format := binary.LittleEndian.Uint16(page[16:]); format != 0 {
		return d, fmt.Errorf("discovery log has format %d, must be 0", format)
	}
	for i := range int(count) {
		e := page[(i+1)*recordSize:][:recordSize]
		security := securities[e[3]&3]
		if e[3]&4 != 0 {
			security += ", sq flow control disable supported"
		}
		d.Records = append(d.Records, Record{
			Transport: named(transports, e[0]), Family: named(families, e[1]), Kind: named(kinds, e[2]), Security: security,
			Port: binary.LittleEndian.Uint16(e[4:]), Service: field(e[32:64]), NQN: field(e[256:512]), Addr: field(e[512:768]),
		})
	}
	return d, nil
}

func named(names map[byte]string, code byte) string {
	if name, known := names[code]; known {
		return name
	}
	return fmt.Sprintf("type %d", code)
}

// field returns text that is terminated by NUL or padded with spaces.
func field(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(bytes.TrimRight(text, " "))
}
