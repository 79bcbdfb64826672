// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"krping/agent/doctor"
	"krping/agent/host/kernel"
)

// explainEnable returns the cause of a failure to enable a namespace, and a fix.
func explainEnable(path string, err error, log kernel.Lines) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return missing(path)
	case errors.Is(err, unix.EBUSY):
		return busy(path)
	}
	return &kernel.Failure{
		What: "cannot serve " + path, Cause: cause(err, log), Fix: "lsblk " + path + "; the device must exist and be writable", Err: err,
	}
}

// explainListen returns the cause of a failure to listen on a port, and a fix. The kernel's own error
// is rarely more than "invalid argument".
func (t *Tree) explainListen(p Port, err error, log kernel.Lines) error {
	transport := p.Addr["trtype"]
	f := &kernel.Failure{What: fmt.Sprintf("cannot serve at %s %s port %s", transport, p.Addr["traddr"], p.Addr["trsvcid"]), Err: err}
	addr, addrErr := netip.ParseAddr(p.Addr["traddr"])
	port, portErr := strconv.ParseUint(p.Addr["trsvcid"], 10, 16)
	switch {
	case log.Find("not supported") != "" && log.Find("transport type") != "":
		f.Cause = fmt.Sprintf("the module nvmet-%s is not loaded (the kernel logged %q)", transport, log.Find("transport type"))
		f.Fix, f.Err = "modprobe nvmet-"+transport, kernel.ErrNoModule
	case addrErr != nil || portErr != nil:
		f.Cause, f.Fix = cause(err, log), "use an IP address and a port, 1 to 65535"
	case errors.Is(err, unix.EADDRINUSE), addr.IsUnspecified() && t.listener(p, addr, uint16(port)) != "":
		f.Cause, f.Fix, f.Err = "the port is in use", "choose another --port, or stop the program that listens there", unix.EADDRINUSE
		if user := t.listener(p, addr, uint16(port)); user != "" {
			f.Cause += ": " + user
		}
	default:
		f.Cause, f.Fix = cause(err, log), "krpingctl doctor --addr "+addr.String()
		if !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
			break
		}
		f.Err = unix.EADDRNOTAVAIL
		finding := doctor.ExamineLocal(addr)
		if transport == RDMA {
			finding = doctor.ExamineAddress(addr)
		}
		if finding.Level != doctor.OK {
			f.Cause, f.Fix = finding.Found+" ("+finding.Cause+")", finding.Fix
		}
	}
	return f
}

// cause returns the errno with what the kernel logged, if nothing better is known.
func cause(err error, log kernel.Lines) string {
	text := err.Error()
	if about := log.About("nvmet", "rdma", "null_blk"); about != "" {
		text += " (the kernel logged: " + about + ")"
	}
	return text
}
