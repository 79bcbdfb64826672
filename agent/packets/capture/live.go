// SPDX-License-Identifier: Apache-2.0

// Package capture captures packets of RoCEv2 and NVMe/TCP from a network interface, and reads and
// writes capture files.
package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gopacket/gopacket"
	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
)

// The TPACKET_V3 ring (Documentation/networking/packet_mmap.rst): the kernel fills a block with
// packets and hands it over when it is full, or after blockTime. It drops packets when no block is
// free, so a reader, whose disk may stall, can pause for the time that filling the ring takes: at
// most blockCount * blockTime, 12 s.
const (
	blockSize  = 1 << 18 // bytes
	blockCount = 1 << 8
	blockTime  = 50      // ms
	frameSize  = 1 << 11 // bytes
)

// Live captures from an interface. It sees Soft-RoCE and NVMe/TCP, but not RDMA done in hardware by
// a NIC, which never passes its RoCE packets to the kernel.
type Live struct {
	netdev string
	fd     int
	ring   []byte
	block  int // index of the next one to read
	wake   int // eventfd that ends a wait
	stats  Statistics
	before uint64 // packets that the interface had received and sent
}

// Statistics are the kernel's counts.
type Statistics struct {
	Packets uint64 `json:"packets"` // that passed the filter, including the dropped ones
	Dropped uint64 `json:"dropped"` // because the ring was full
}

// Open starts capturing from an interface. Without CAP_NET_RAW the error is EPERM.
func Open(netdev string, tcpPorts []uint16) (*Live, error) {
	device, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w (this host has %s)", netdev, err, strings.Join(netdevs(), ", "))
	}
	program, err := filter(tcpPorts, device.Flags&net.FlagLoopback != 0)
	if err != nil {
		return nil, err
	}
	l := &Live{netdev: netdev, wake: -1, before: passed(netdev)}
	if l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	filters := make([]unix.SockFilter, len(program))
	for i, op := range program {
		filters[i] = unix.SockFilter{Code: op.Op, Jt: op.Jt, Jf: op.Jf, K: op.K}
	}
	if err := l.setup(device.Index, filters); err != nil {
		return nil, errors.Join(fmt.Errorf("capture from %s: %w", netdev, err), l.Close())
	}
	return l, nil
}

func netdevs() []string {
	devices, err := net.Interfaces()
	if err != nil {
		return []string{err.Error()}
	}
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
	}
	return names
}

// setup attaches the filter and the ring before it binds the socket, so that no packet arrives early.
func (l *Live) setup(device int, filters []unix.SockFilter) error {
	fprog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	if err := unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog); err != nil {
		return fmt.Errorf("attach the packet filter: %w", err)
	}
	if err := unix.SetsockoptInt(l.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return fmt.Errorf("select TPACKET_V3: %w", err)
	}
	request := unix.TpacketReq3{
		Block_size: blockSize, Block_nr: blockCount, Frame_size: frameSize, Frame_nr: blockSize / frameSize * blockCount, Retire_blk_tov: blockTime,
	}
	if err := unix.SetsockoptTpacketReq3(l.fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request); err != nil {
		return fmt.Errorf("allocate a ring of %d MiB: %w", blockSize*blockCount>>20, err)
	}
	var err error
	if l.ring, err = unix.Mmap(l.fd, 0, blockSize*blockCount, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the ring: %w", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create an eventfd: %w", err)
	}
	all := uint16(unix.ETH_P_ALL)
	if err := unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: device}); err != nil {
		return err
	}
	// A mirror port gets packets for other hosts. The kernel ends the mode when the socket is closed.
	promiscuous := unix.PacketMreq{Ifindex: int32(device), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(l.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &promiscuous); err != nil {
		return fmt.Errorf("set promiscuous mode: %w", err)
	}
	return l.checkLink()
}

// ErrNotEthernet is returned by Open for an interface whose frames have no Ethernet header.
var ErrNotEthernet = errors.New("not Ethernet, over which RoCE runs, and NVMe/TCP is captured")

func (l *Live) checkLink() error {
	addr, err := unix.Getsockname(l.fd)
	if err != nil {
		return fmt.Errorf("read the socket's address: %w", err)
	}
	if link, ok := addr.(*unix.SockaddrLinklayer); ok {
		return ethernet(link.Hatype)
	}
	return nil
}

// ethernet returns an error if an interface of this type (enum ARPHRD_*) has no Ethernet headers.
func ethernet(hardware uint16) error {
	var what string
	switch hardware {
	case unix.ARPHRD_ETHER, unix.ARPHRD_LOOPBACK:
		return nil
	case unix.ARPHRD_INFINIBAND:
		what = "IP over InfiniBand"
	case unix.ARPHRD_NONE, unix.ARPHRD_PPP, unix.ARPHRD_RAWIP:
		what = "a tunnel of IP packets; name the interface that it runs over"
	case unix.ARPHRD_TUNNEL, unix.ARPHRD_TUNNEL6, unix.ARPHRD_SIT, unix.ARPHRD_IPGRE, unix.ARPHRD_IP6GRE:
		what = "an IP tunnel; name the interface that it runs over"
	case unix.ARPHRD_CAN:
		what = "a CAN bus"
	default:
		what = fmt.Sprintf("hardware type %d", hardware)
	}
	return fmt.Errorf("%w: it is %s", ErrNotEthernet, what)
}

// passed returns the packets that an interface has received and sent, 0 if that is not known.
func passed(netdev string) (packets uint64) {
	for _, name := range []string{"rx_packets", "tx_packets"} {
		n, err := strconv.ParseUint(sysfs.Text("/sys/class/net", netdev, "statistics", name), 10, 64)
		if err != nil {
			return 0
		}
		packets += n
	}
	return packets
}

// Passed returns how many packets the interface has received and sent since Open, of any protocol.
func (l *Live) Passed() uint64 { return passed(l.netdev) - l.before }

// Netdev returns the interface's name.
func (l *Live) Netdev() string { return l.netdev }

// Close ends the capture and releases its socket and memory.
func (l *Live) Close() error {
	errs := []error{unix.Close(l.fd)}
	if l.ring != nil {
		errs = append(errs, unix.Munmap(l.ring))
	}
	if l.wake >= 0 {
		errs = append(errs, unix.Close(l.wake))
	}
	return errors.Join(errs...)
}

// Run calls each for every packet until ctx ends, or each returns false or an error. It calls idle
// whenever it is about to wait for packets. Data is valid only during the call. After the end of ctx,
// each is still called for the packets captured before it.
func (l *Live) Run(ctx context.Context, each func(data []byte, info gopacket.CaptureInfo) (more bool, err error), idle func() error) error {
	stop := context.AfterFunc(ctx, func() { _, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	defer stop()
	var until time.Time
	untilEnd := func(data []byte, info gopacket.CaptureInfo) (bool, error) {
		if !until.IsZero() && info.Timestamp.After(until) {
			return false, nil
		}
		return each(data, info)
	}
	for {
		if ctx.Err() != nil && until.IsZero() {
			until = time.Now()
		}
		block := l.ring[l.block*blockSize:][:blockSize]
		header := (*unix.TpacketHdrV1)(unsafe.Pointer(&(*unix.TpacketBlockDesc)(unsafe.Pointer(&block[0])).Hdr))
		if atomic.LoadUint32(&header.Block_status)&unix.TP_STATUS_USER == 0 {
			if err := idle(); err != nil {
				return err
			}
			if ended, err := l.wait(ctx); ended || err != nil {
				return err
			}
			continue
		}
		more, err := readBlock(block, header, untilEnd)
		atomic.StoreUint32(&header.Block_status, unix.TP_STATUS_KERNEL)
		l.block = (l.block + 1) % blockCount
		if err != nil || !more {
			return err
		}
	}
}

// wait waits for a block. After the end of ctx it waits once more, for the block that the kernel is
// still filling; ended is true if there was none.
func (l *Live) wait(ctx context.Context) (ended bool, err error) {
	polled := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN | unix.POLLERR}, {Fd: int32(l.wake), Events: unix.POLLIN}}
	timeout := -1
	if ctx.Err() != nil {
		polled, timeout = polled[:1], 5*blockTime
	}
	n, err := unix.Poll(polled, timeout)
	switch {
	case errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return true, fmt.Errorf("wait for packets: %w", err)
	case polled[0].Revents&unix.POLLERR != 0:
		code, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			return true, fmt.Errorf("capture from %s: %w", l.netdev, err)
		}
	}
	return n == 0, nil
}

func readBlock(block []byte, header *unix.TpacketHdrV1, each func([]byte, gopacket.CaptureInfo) (bool, error)) (more bool, err error) {
	at := header.Offset_to_first_pkt
	for range header.Num_pkts {
		packet := (*unix.Tpacket3Hdr)(unsafe.Pointer(&block[at]))
		data := block[at+uint32(packet.Mac):][:packet.Snaplen]
		info := gopacket.CaptureInfo{
			Timestamp: time.Unix(int64(packet.Sec), int64(packet.Nsec)), CaptureLength: len(data), Length: int(packet.Len),
		}
		if more, err := each(data, info); err != nil || !more {
			return more, err
		}
		at += packet.Next_offset
	}
	return true, nil
}

// Statistics returns the kernel's counts since Open.
func (l *Live) Statistics() (Statistics, error) {
	s, err := unix.GetsockoptTpacketStatsV3(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS) // reading resets them
	if err != nil {
		return l.stats, fmt.Errorf("read the socket's statistics: %w", err)
	}
	l.stats.Packets += uint64(s.Packets)
	l.stats.Dropped += uint64(s.Drops)
	return l.stats, nil
}
