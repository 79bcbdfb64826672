// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// hub is the network between hosts: what one sends, all others get. Hosts come and go as they boot.
type hub struct {
	listener net.Listener
	mu       sync.Mutex
	ports    map[net.Conn]chan []byte
}

// Limits of a port. QEMU sends frames of at most 64 KiB and 4 bytes.
const (
	maxFrame = 1 << 17
	queued   = 1024 // frames; a port that is full loses more
)

// newHub makes a hub at a Unix socket, to which QEMU's "-netdev stream" connects.
func newHub(socket string) (*hub, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	h := &hub{listener: listener, ports: map[net.Conn]chan []byte{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			out := make(chan []byte, queued)
			h.mu.Lock()
			h.ports[conn] = out
			h.mu.Unlock()
			go h.receive(conn)
			go send(conn, out)
		}
	}()
	return h, nil
}

// receive passes on what a host sends, until it is gone.
func (h *hub) receive(conn net.Conn) {
	for {
		frame, err := readFrame(conn)
		h.mu.Lock()
		if err != nil {
			close(h.ports[conn])
			delete(h.ports, conn)
			h.mu.Unlock()
			_ = conn.Close()
			return
		}
		for other, out := range h.ports {
			if other == conn {
				continue
			}
			select {
			case out <- frame:
			default:
			}
		}
		h.mu.Unlock()
	}
}

func send(conn net.Conn, frames <-chan []byte) {
	for frame := range frames {
		_, _ = conn.Write(frame) // receive notices an error
	}
}

// readFrame reads a frame with the length in front of it.
func readFrame(r io.Reader) ([]byte, error) {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > maxFrame {
		return nil, errors.New("a frame is too long")
	}
	frame := make([]byte, 4+n)
	copy(frame, header[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

func (h *hub) close() { _ = h.listener.Close() }
