// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Commands and attributes for dumping the resources of RDMA devices, from
// include/uapi/rdma/rdma_netlink.h.
const (
	cmdResQP   = 10
	cmdResCMID = 11

	attrResQP       = 19
	attrResType     = 26
	attrResState    = 27
	attrResPID      = 28
	attrResKernName = 29
	attrResCMID     = 30
	attrResSrcAddr  = 33
	attrResDstAddr  = 34
)

// resources dumps a kind of resource of all RDMA devices and calls each for every entry.
func resources(command int, table uint16, each func(device string, entry []byte)) error {
	devices, err := netlink.RdmaLinkList()
	if err != nil {
		return fmt.Errorf("list the RDMA devices: %w", err)
	}
	for _, d := range devices {
		request := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|command, unix.NLM_F_DUMP)
		index := binary.NativeEndian.AppendUint32(nil, d.Attrs.Index)
		request.AddData(nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, index))
		messages, err := request.Execute(unix.NETLINK_RDMA, 0)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list the resources of %s: %w", d.Attrs.Name, err)
		}
		for _, m := range messages {
			entries(m, table, func(entry []byte) { each(d.Attrs.Name, entry) })
		}
	}
	return nil
}

// entries calls each for every entry of that table in a message of a dump.
func entries(message []byte, table uint16, each func(entry []byte)) {
	attributes(message, func(kind uint16, value []byte) {
		if kind == table {
			attributes(value, func(_ uint16, entry []byte) { each(entry) })
		}
	})
}

// attributes calls each for every netlink attribute.
func attributes(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= 4 {
		length := int(binary.NativeEndian.Uint16(data))
		if length < 4 || length > len(data) {
			return
		}
		each(binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED, data[4:length])
		data = data[min((length+3)&^3, len(data)):]
	}
}
