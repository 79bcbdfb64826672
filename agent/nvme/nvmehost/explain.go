// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"krping/agent/doctor"
	"krping/agent/host/kernel"
)

// explain returns the cause of a failure to connect and a fix, from the errno and what the kernel
// logged, and if these say too little, from the route to the target.
func explain(o Options, err error, log kernel.Lines) error {
	where := fmt.Sprintf("%s %v port %d", o.Transport, o.Addr, o.Port)
	ask := fmt.Sprintf("krpingctl nvme discover --transport %s --traddr %v --trsvcid %d", o.Transport, o.Addr, o.Port)
	f := &kernel.Failure{What: fmt.Sprintf("cannot connect to %s at %s", o.NQN, where), Err: err}
	refused := func(cause, fix string) { f.Cause, f.Fix, f.Err = cause, fix, unix.ECONNREFUSED }
	switch {
	case errors.Is(err, unix.EALREADY):
		f.Cause, f.Fix = "this host is already connected to it at that address", "krpingctl nvme list; or add --duplicate-connect"
	case log.Find("subsysnqn \"") != "":
		refused("the target serves no such NQN at this address", ask+" lists what it serves; on the target: krpingctl nvme target list")
	case log.Find("is not allowed, hostnqn") != "":
		refused("the target does not allow this host, "+o.HostNQN, fmt.Sprintf("on the target: krpingctl nvme target add --nqn %s --allow-host %s; or use an NQN that it allows: --hostnqn", o.NQN, o.HostNQN))
	case errors.Is(err, unix.ENOKEY) && o.TLS:
		f.Cause, f.Fix = "no TLS key (PSK) for this host and subsystem is in the kernel's keyring", "add it: nvme gen-tls-key --insert; tlshd must run, too"
	case authentication(log) != "" && o.Secret == "":
		f.Cause, f.Fix, f.Err = "the target lets this host in only with its DH-HMAC-CHAP key", "give the key of this host on the target: --dhchap-secret", unix.ENOKEY
	case authentication(log) != "":
		f.Cause, f.Err = "authentication failed (the kernel logged: "+authentication(log)+")", unix.EKEYREJECTED
		f.Fix = "check that --dhchap-secret, and --dhchap-ctrl-secret if given, are the host's keys on the target: dhchap_key and dhchap_ctrl_key"
	case log.Find("invalid service ID", "failed to connect socket: -111") != "":
		refused("nothing listens on that port", "on the target: krpingctl nvme target list shows the ports")
	case log.Find("found same hostid", "found same hostnqn") != "":
		f.Cause, f.Fix, f.Err = log.Find("found same hostid", "found same hostnqn"), "use the same pair of --hostnqn and --hostid for all connections of this host", unix.EINVAL
	case log.Find("no handler found for transport") != "":
		f.Cause, f.Fix, f.Err = "the module nvme-"+o.Transport+" is not loaded", "modprobe nvme-"+o.Transport, kernel.ErrNoModule
	case errors.Is(err, unix.EINVAL):
		f.Cause, f.Fix = unexplained(err, log), "check the options; `cat "+fabrics+"` lists those that this kernel has"
	default:
		f.Cause, f.Fix = unexplained(err, log), "krpingctl doctor --peer "+o.Addr.String()
		o.explainRoute(f)
	}
	return f
}

// authentication returns what the kernel says about DH-HMAC-CHAP, or "".
func authentication(log kernel.Lines) string {
	return log.Find("uthentication", "qid 0: no key", "AUTHREQ", "dhchap")
}

// lacking explains options that this kernel does not have.
func lacking(o Options, names []string) error {
	f := &kernel.Failure{
		What: "cannot connect to " + o.NQN, Cause: "this kernel's nvme-fabrics has no " + strings.Join(names, ", "),
		Fix: "leave it out; or use a newer kernel", Err: unix.EOPNOTSUPP,
	}
	for name, config := range map[string]string{"dhchap_secret": "CONFIG_NVME_HOST_AUTH (before 6.7: CONFIG_NVME_AUTH)", "tls": "CONFIG_NVME_TCP_TLS"} {
		if slices.Contains(names, name) {
			f.Fix = "use a kernel with " + config
		}
	}
	return f
}

// explainRoute adds what doctor finds about the route to a target that was not reached.
func (o Options) explainRoute(f *kernel.Failure) {
	if o.Transport != "rdma" {
		if isAny(f.Err, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH) {
			f.Cause, f.Fix = "the target does not answer ("+f.Cause+")", "ping "+o.Addr.String()
		}
		return
	}
	finding := doctor.ExamineRoute(o.Addr)
	switch {
	case finding.Level == doctor.Problem:
		f.Cause, f.Fix, f.Err = finding.Found+" ("+finding.Cause+")", finding.Fix, unix.EADDRNOTAVAIL
	case errors.Is(f.Err, unix.ECONNRESET): // the kernel's errno also if there is no answer
		f.Cause, f.Err = fmt.Sprintf("%v does not answer, or no RDMA device there serves it (%s)", o.Addr, f.Cause), unix.EHOSTUNREACH
	}
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// unexplained returns the errno with what the kernel logged.
func unexplained(err error, log kernel.Lines) string {
	text := err.Error()
	if about := log.About("nvme", "rdma"); about != "" {
		text += " (the kernel logged: " + about + ")"
	}
	return text
}
