// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Writer writes a pcapng file, with an interface for each link type.
type Writer struct {
	file       *os.File
	buffer     *bufio.Writer // the buffer of ng has only 4 KiB: about a system call per packet
	ng         *pcapgo.NgWriter
	netdev     string
	interfaces map[layers.LinkType]int // their numbers in the file
	started    time.Time
}

const writeSize = 1 << 18 // bytes

// Create creates the file, or truncates an existing one. netdev is the name of the interface that
// the packets come from, or "".
func Create(path, netdev string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // it contains other users' data
	if err != nil {
		return nil, err
	}
	return NewWriter(file, netdev), nil
}

// NewWriter returns a Writer to an open file, such as a pipe. Close closes it.
func NewWriter(file *os.File, netdev string) *Writer {
	return &Writer{file: file, buffer: bufio.NewWriterSize(file, writeSize), netdev: netdev, interfaces: map[layers.LinkType]int{}, started: time.Now()}
}

// Flush writes what is buffered.
func (w *Writer) Flush() error {
	if w.ng == nil {
		return nil
	}
	return errors.Join(w.ng.Flush(), w.buffer.Flush())
}

// add returns the number of the interface with a link type, and adds it if the file has none.
func (w *Writer) add(link layers.LinkType) (int, error) {
	if number, known := w.interfaces[link]; known {
		return number, nil
	}
	device := pcapgo.NgInterface{Name: w.netdev, OS: "Linux", LinkType: link, SnapLength: snapLength, TimestampResolution: 9}
	number, err := 0, error(nil)
	if w.ng == nil {
		section := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "krpingctl capture", OS: "Linux"}}
		w.ng, err = pcapgo.NewNgWriterInterface(w.buffer, device, section)
	} else {
		number, err = w.ng.AddInterface(device)
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", w.file.Name(), err)
	}
	w.interfaces[link] = number
	return number, nil
}

// Write adds a packet.
func (w *Writer) Write(data []byte, info gopacket.CaptureInfo) error {
	number, err := w.add(LinkType(info))
	if err != nil {
		return err
	}
	info.InterfaceIndex = number
	if err := w.ng.WritePacket(info, data); err != nil {
		return fmt.Errorf("write %s: %w", w.file.Name(), err)
	}
	return nil
}

// LinkType returns the link type of a packet.
func LinkType(info gopacket.CaptureInfo) layers.LinkType {
	for _, about := range info.AncillaryData { // as pcapgo gives it
		if link, ok := about.(layers.LinkType); ok {
			return link
		}
	}
	return layers.LinkTypeEthernet
}

// Close appends the kernel's counts and closes the file.
func (w *Writer) Close(s Statistics) error {
	if len(w.interfaces) == 0 {
		if _, err := w.add(layers.LinkTypeEthernet); err != nil {
			return errors.Join(err, w.file.Close())
		}
	}
	counts := pcapgo.NgInterfaceStatistics{
		LastUpdate: time.Now(), StartTime: w.started, EndTime: time.Now(), PacketsReceived: s.Packets, PacketsDropped: s.Dropped,
	}
	return errors.Join(w.ng.WriteInterfaceStats(0, counts), w.ng.Flush(), w.buffer.Flush(), w.file.Close())
}

// Read calls each for every packet of a pcapng or pcap file, which may be compressed with gzip, until
// the file ends, or each returns false or an error. Data and info are valid only during the call; LinkType
// returns the packet's link type, of which a pcapng file may have several. The statistics are those that the capturing kernel left in the file, zero if there are none.
func Read(r io.Reader, each func(data []byte, info gopacket.CaptureInfo) (more bool, err error)) (Statistics, error) {
	var s Statistics
	next, err := newReader(bufio.NewReader(r), func(counts pcapgo.NgInterfaceStatistics) {
		if counts.PacketsDropped != pcapgo.NgNoValue64 {
			s.Dropped += counts.PacketsDropped
		}
		if counts.PacketsReceived != pcapgo.NgNoValue64 {
			s.Packets += counts.PacketsReceived
		}
	})
	if err != nil {
		return s, err
	}
	for n := 1; ; n++ {
		data, info, err := next()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("packet %d: %w", n, err)
		}
		if more, err := each(data, info); err != nil || !more {
			return s, err
		}
	}
}

// newReader returns a function that reads the next packet.
func newReader(r *bufio.Reader, counts func(pcapgo.NgInterfaceStatistics)) (func() ([]byte, gopacket.CaptureInfo, error), error) {
	plain, err := decompress(r)
	if err != nil {
		return nil, err
	}
	magic, err := plain.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("not a capture file: %w", err)
	}
	if string(magic) == "\x0a\x0d\x0d\x0a" {
		options := pcapgo.NgReaderOptions{
			WantMixedLinkType: true, StatisticsCallback: func(_ int, s pcapgo.NgInterfaceStatistics) { counts(s) },
		}
		ng, err := pcapgo.NewNgReader(plain, options)
		if err != nil {
			return nil, fmt.Errorf("not a valid pcapng file: %w", err)
		}
		return ng.ZeroCopyReadPacketData, nil
	}
	pcap, err := pcapgo.NewReader(plain)
	if err != nil {
		return nil, fmt.Errorf("neither a pcapng nor a pcap file: %w; editcap -F pcapng converts those of other tools", err)
	}
	link := []any{pcap.LinkType()}
	return func() ([]byte, gopacket.CaptureInfo, error) {
		data, info, err := pcap.ZeroCopyReadPacketData()
		info.AncillaryData = link
		return data, info, err
	}, nil
}
