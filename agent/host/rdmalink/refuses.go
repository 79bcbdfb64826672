// SPDX-License-Identifier: Apache-2.0

package rdmalink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// managerFile is the connection manager of the module rdma_ucm.
const managerFile = "/dev/infiniband/rdma_cm"

// Commands and events of include/uapi/rdma/rdma_user_cm.h and include/rdma/rdma_cm.h.
const (
	cmCreateID     = 0
	cmResolveIP    = 3
	cmResolveRoute = 4
	cmConnect      = 6
	cmGetEvent     = 12

	cmPortSpaceTCP = 0x0106
	cmQPTypeRC     = 2

	eventAddrResolved  = 0
	eventRouteResolved = 2
	eventUnreachable   = 7
	eventRejected      = 8
)

// manager is an open connection manager with one id.
type manager struct {
	fd       int // closing it destroys the id
	id       uint32
	deadline time.Time
}

// Refuses connects to a port of an address on which nobody listens, and reports whether that was refused
// within a time. If not, nobody can connect to the address. The error is fs.ErrNotExist without rdma_ucm.
func Refuses(ctx context.Context, to netip.AddrPort, timeout time.Duration) (bool, error) {
	fd, err := unix.Open(managerFile, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: managerFile, Err: err}
	}
	defer unix.Close(fd)
	m := &manager{fd: fd, deadline: time.Now().Add(timeout)}
	event, err := m.connect(ctx, to)
	switch {
	case errors.Is(err, errTimeout):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("connect to %v: %w", to, err)
	case event != eventRejected && event != eventUnreachable:
		return false, fmt.Errorf("connect to %v: event %d of the connection manager", to, event)
	}
	return event == eventRejected, nil
}

var errTimeout = errors.New("timeout")

// connect returns the event that ended the attempt.
func (m *manager) connect(ctx context.Context, to netip.AddrPort) (uint32, error) {
	create := make([]byte, 16, 24) // struct rdma_ucm_create_id: a number of ours, the response's address
	create[0] = 1                  // without one there are no events
	create = binary.NativeEndian.AppendUint16(create, cmPortSpaceTCP)
	create = append(create, cmQPTypeRC, 0, 0, 0, 0, 0)
	id := make([]byte, 4)
	if err := m.command(cmCreateID, create, id, 8); err != nil {
		return 0, err
	}
	m.id = binary.NativeEndian.Uint32(id)
	milliseconds := uint32(time.Until(m.deadline).Milliseconds())

	ip := append(make([]byte, 28), sockaddr(to)...) // struct rdma_ucm_resolve_ip: any source address
	ip = binary.NativeEndian.AppendUint32(ip, m.id)
	ip = binary.NativeEndian.AppendUint32(ip, milliseconds)
	if event, err := m.step(ctx, cmResolveIP, ip); err != nil || event != eventAddrResolved {
		return event, err
	}
	route := binary.NativeEndian.AppendUint32(nil, m.id)
	route = binary.NativeEndian.AppendUint32(route, milliseconds)
	if event, err := m.step(ctx, cmResolveRoute, route); err != nil || event != eventRouteResolved {
		return event, err
	}
	request := make([]byte, 4+4+256, 288) // struct rdma_ucm_conn_param, without a queue pair
	request = append(request, 0, 0, 1, 1, 0, 7, 7, 1)
	request = binary.NativeEndian.AppendUint32(request, m.id)
	return m.step(ctx, cmConnect, append(request, make([]byte, 4+8)...))
}

// step executes a command without a response and returns the event that it causes.
func (m *manager) step(ctx context.Context, command uint32, body []byte) (uint32, error) {
	if err := m.command(command, body, nil, 0); err != nil {
		return 0, err
	}
	event := make([]byte, 336) // struct rdma_ucm_event_resp
	for {
		err := m.command(cmGetEvent, make([]byte, 8), event, 0)
		switch {
		case !errors.Is(err, unix.EAGAIN):
			return binary.NativeEndian.Uint32(event[12:]), err
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case time.Now().After(m.deadline):
			return 0, errTimeout
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLIN}}, 100) // ms; the loop sees why it ended
	}
}

// command writes a command. The kernel writes to response, whose address is at an offset in body.
func (m *manager) command(command uint32, body, response []byte, at int) error {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	if response != nil {
		pinned.Pin(&response[0])
		binary.NativeEndian.PutUint64(body[at:], uint64(uintptr(unsafe.Pointer(&response[0]))))
	}
	message := binary.NativeEndian.AppendUint32(nil, command) // struct rdma_ucm_cmd_hdr
	message = binary.NativeEndian.AppendUint16(message, uint16(len(body)))
	message = binary.NativeEndian.AppendUint16(message, uint16(len(response)))
	_, err := unix.Write(m.fd, append(message, body...))
	return err
}

// sockaddr returns a struct sockaddr_in6, or a sockaddr_in of the same length.
func sockaddr(addr netip.AddrPort) []byte {
	ip := addr.Addr().Unmap()
	b := make([]byte, 28)
	binary.BigEndian.PutUint16(b[2:], addr.Port())
	if ip.Is4() {
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		copy(b[4:], ip.AsSlice())
	} else {
		binary.NativeEndian.PutUint16(b, unix.AF_INET6)
		copy(b[8:], ip.AsSlice())
	}
	return b
}
