// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of include/uapi/rdma/rdma_netlink.h.
const (
	cmdResCMIDGet    = 11 // RDMA_NLDEV_CMD_RES_CM_ID_GET
	attrResState     = 27 // RDMA_NLDEV_ATTR_RES_...
	attrResCMID      = 30
	attrResCMIDEntry = 31
	attrResSrcAddr   = 33
	stateListen      = 8 // RDMA_CM_LISTEN of drivers/infiniband/core/cma_priv.h
)

// Listeners returns the ports on which CM ids listen on the RDMA device. It asks the kernel itself: tests poll it
// hundreds of times, and a run of rdma(8) takes 30 times as long.
func Listeners(t testing.TB) []int {
	t.Helper()
	var all []int
	dump(t, func() error {
		all = nil
		link, err := netlink.RdmaLinkByName(Device(t))
		if err != nil {
			return err
		}
		req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<10|cmdResCMIDGet, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(link.Attrs.Index)))
		messages, err := req.Execute(unix.NETLINK_RDMA, 0)
		if err != nil {
			return err
		}
		for _, message := range messages {
			listeners, err := parseListeners(message)
			if err != nil {
				return err
			}
			all = append(all, listeners...)
		}
		return nil
	})
	return all
}

// Listens says whether anybody listens on a port of the RDMA device.
func Listens(t testing.TB, port int) bool {
	t.Helper()
	return slices.Contains(Listeners(t), port)
}

// dump repeats a netlink dump that a change has interrupted.
func dump(t testing.TB, ask func() error) {
	t.Helper()
	for range 100 {
		err := ask()
		if err == nil {
			return
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			t.Fatalf("ask for RDMA resources: %v", err)
		}
	}
	t.Fatal("ask for RDMA resources: changed 100 times in between")
}

// children returns the attributes of that kind in a nested attribute.
func children(b []byte, kind uint16) ([][]byte, error) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	var values [][]byte
	for _, attr := range attrs {
		if attr.Attr.Type&nl.NLA_TYPE_MASK == kind {
			values = append(values, attr.Value)
		}
	}
	return values, nil
}

// entries returns the attributes of each entry in a message's tables of that kind.
func entries(message []byte, table, entry uint16) ([]map[uint16]syscall.NetlinkRouteAttr, error) {
	tables, err := children(message, table)
	if err != nil {
		return nil, err
	}
	var all []map[uint16]syscall.NetlinkRouteAttr
	for _, t := range tables {
		list, err := children(t, entry)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			attrs, err := nl.ParseRouteAttrAsMap(e)
			if err != nil {
				return nil, err
			}
			all = append(all, attrs)
		}
	}
	return all, nil
}

func parseListeners(message []byte) ([]int, error) {
	ids, err := entries(message, attrResCMID, attrResCMIDEntry)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, id := range ids {
		if state := id[attrResState].Value; len(state) > 0 && state[0] == stateListen {
			if addr := id[attrResSrcAddr].Value; len(addr) >= 4 { // a sockaddr: family, port
				all = append(all, int(binary.BigEndian.Uint16(addr[2:])))
			}
		}
	}
	return all, nil
}

// resources returns how many RDMA resources of each kind each device has. It reads the answer itself: package
// netlink takes the limits that newer kernels add to it for an error.
func resources(t testing.TB) map[string]map[string]uint64 {
	t.Helper()
	all := map[string]map[string]uint64{}
	dump(t, func() error {
		clear(all)
		req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<10|nl.RDMA_NLDEV_CMD_RES_GET, unix.NLM_F_DUMP)
		messages, err := req.Execute(unix.NETLINK_RDMA, 0)
		if err != nil {
			return err
		}
		for _, message := range messages {
			names, err := children(message, nl.RDMA_NLDEV_ATTR_DEV_NAME)
			if err != nil {
				return err
			}
			if all[text(names[0])], err = parseSummary(message); err != nil {
				return err
			}
		}
		return nil
	})
	return all
}

// parseSummary returns how many resources of each kind a message lists.
func parseSummary(message []byte) (map[string]uint64, error) {
	kinds, err := entries(message, nl.RDMA_NLDEV_ATTR_RES_SUMMARY, nl.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY)
	if err != nil {
		return nil, err
	}
	counts := map[string]uint64{}
	for _, kind := range kinds {
		count := kind[nl.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR].Value
		counts[text(kind[nl.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME].Value)] = binary.NativeEndian.Uint64(count)
	}
	return counts, nil
}

// text returns a string of a netlink attribute.
func text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// Resources returns how many RDMA resources of each kind there are, as text.
func Resources(t testing.TB) string {
	t.Helper()
	var list strings.Builder
	all := resources(t)
	for _, device := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&list, "%s:", device)
		for _, kind := range slices.Sorted(maps.Keys(all[device])) {
			fmt.Fprintf(&list, " %s %d", kind, all[device][kind])
		}
		list.WriteByte('\n')
	}
	return list.String()
}

// SameResources waits until there are as many RDMA resources as Resources has returned before.
func SameResources(t testing.TB, before string) {
	t.Helper()
	Eventually(t, 20*time.Second, "RDMA resources are what they were: "+before, func() bool { return Resources(t) == before })
}

// NoResources waits until no RDMA resource is left but, on RoCE, the queue pair of the connection
// manager.
func NoResources(t testing.TB) {
	t.Helper()
	var qps uint64 = 1
	if IWARP(t) {
		qps = 0
	}
	Eventually(t, 20*time.Second, "no RDMA resource is left", func() bool {
		left, found := resources(t)[Device(t)]
		return found && left["qp"] == qps && left["cm_id"] == 0 && left["mr"] == 0
	})
}
