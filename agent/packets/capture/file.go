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

// Writer writes a pcapng file of one interface.
type Writer struct {
	file    *os.File
	buffer  *bufio.Writer // the buffer of ng has only 4 KiB: about a system call per packet
	ng      *pcapgo.NgWriter
	started time.Time
}

const writeSize = 1 << 18 // bytes

// Create creates the file, or truncates an existing one. netdev is the name of the interface that
// the packets come from, or "".
func Create(path, netdev string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // it contains other users' data
	if err != nil {
		return nil, err
	}
	section := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "krpingctl capture", OS: "Linux"}}
	device := pcapgo.NgInterface{Name: netdev, OS: "Linux", LinkType: layers.LinkTypeEthernet, SnapLength: snapLength, TimestampResolution: 9}
	buffer := bufio.NewWriterSize(file, writeSize)
	ng, err := pcapgo.NewNgWriterInterface(buffer, device, section)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), file.Close())
	}
	return &Writer{file: file, buffer: buffer, ng: ng, started: time.Now()}, nil
}

// Write adds a packet.
func (w *Writer) Write(data []byte, info gopacket.CaptureInfo) error {
	if err := w.ng.WritePacket(info, data); err != nil {
		return fmt.Errorf("write %s: %w", w.file.Name(), err)
	}
	return nil
}

// Close appends the kernel's counts and closes the file.
func (w *Writer) Close(s Statistics) error {
	counts := pcapgo.NgInterfaceStatistics{
		LastUpdate: time.Now(), StartTime: w.started, EndTime: time.Now(), PacketsReceived: s.Packets, PacketsDropped: s.Dropped,
	}
	return errors.Join(w.ng.WriteInterfaceStats(0, counts), w.ng.Flush(), w.buffer.Flush(), w.file.Close())
}

// packetReader is implemented by the readers of both formats.
type packetReader interface {
	ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	LinkType() layers.LinkType
}

// Read calls each for every packet of a pcapng or pcap file, which may be compressed with gzip, until
// the file ends, or each returns false or an error. Data is valid only during the call. The
// statistics are those that the capturing kernel left in the file, zero if there are none.
func Read(r io.Reader, each func(data []byte, info gopacket.CaptureInfo) (more bool, err error)) (Statistics, error) {
	var s Statistics
	packets, err := newReader(bufio.NewReader(r), func(counts pcapgo.NgInterfaceStatistics) {
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
		data, info, err := packets.ZeroCopyReadPacketData()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return s, fmt.Errorf("packet %d: %w", n, err)
		}
		if link := packets.LinkType(); link != layers.LinkTypeEthernet {
			return s, fmt.Errorf("packet %d: link type is %v, must be Ethernet", n, link)
		}
		if more, err := each(data, info); err != nil || !more {
			return s, err
		}
	}
}

func newReader(r *bufio.Reader, counts func(pcapgo.NgInterfaceStatistics)) (packetReader, error) {
	plain, err := decompress(r)
	if err != nil {
		return nil, err
	}
	magic, err := plain.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("not a capture file: %w", err)
	}
	if string(magic) == "\x0a\x0d\x0d\x0a" {
		options := pcapgo.NgReaderOptions{StatisticsCallback: func(_ int, s pcapgo.NgInterfaceStatistics) { counts(s) }}
		ng, err := pcapgo.NewNgReader(plain, options)
		if err != nil {
			return nil, fmt.Errorf("not a valid pcapng file: %w", err)
		}
		return ng, nil
	}
	pcap, err := pcapgo.NewReader(plain)
	if err != nil {
		return nil, fmt.Errorf("neither a pcapng nor a pcap file: %w", err)
	}
	return pcap, nil
}
