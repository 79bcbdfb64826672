// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"crypto/sha1"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Options are the options of a connection, which nvme-cli has, too. A nil pointer means the kernel's
// default.
type Options struct {
	Transport      string // rdma or tcp
	Addr           netip.Addr
	Port           uint16
	NQN            string
	HostAddr       netip.Addr // to connect from, if valid
	HostIface      string     // TCP: network interface to connect through
	HostNQN        string
	HostID         string
	IOQueues       *int
	WriteQueues    *int
	PollQueues     *int
	QueueSize      *int
	KeepAlive      *int // seconds
	CtrlLossTMO    *int // seconds; -1: never give up
	ReconnectDelay *int // seconds between attempts to reconnect
	TOS            *int
	HeaderDigest   bool // TCP
	DataDigest     bool // TCP
	DuplicateConn  bool
}

// Check returns an error if an option is not valid. It uses the names of the flags of krpingctl and
// nvme-cli.
func (o Options) Check() error {
	switch {
	case o.Transport != "rdma" && o.Transport != "tcp":
		return fmt.Errorf("--transport %s: must be rdma or tcp", o.Transport)
	case !o.Addr.IsValid():
		return fmt.Errorf("--traddr is needed: the target's IP address")
	case o.Port == 0:
		return fmt.Errorf("--trsvcid 0: must be 1 to 65535")
	case o.Transport != "tcp" && (o.HeaderDigest || o.DataDigest || o.HostIface != ""):
		return fmt.Errorf("--hdr-digest, --data-digest and --host-iface are for --transport tcp")
	case strings.ContainsAny(o.NQN+o.HostNQN+o.HostID+o.HostIface, ",\n"):
		return fmt.Errorf("--nqn, --hostnqn, --hostid and --host-iface must not contain a comma")
	case o.HostID != "" && !isUUID.MatchString(o.HostID):
		return fmt.Errorf("--hostid %s: not a UUID", o.HostID)
	}
	for _, limit := range []struct {
		name        string
		value       *int
		least, most int
	}{
		{"nr-io-queues", o.IOQueues, 1, 65535}, {"nr-write-queues", o.WriteQueues, 1, 65535}, {"nr-poll-queues", o.PollQueues, 1, 65535},
		{"queue-size", o.QueueSize, 16, 1024}, {"keep-alive-tmo", o.KeepAlive, 0, 1 << 30}, {"ctrl-loss-tmo", o.CtrlLossTMO, -1, 1 << 30},
		{"reconnect-delay", o.ReconnectDelay, 1, 1 << 30}, {"tos", o.TOS, 0, 255},
	} {
		if v := limit.value; v != nil && (*v < limit.least || *v > limit.most) {
			return fmt.Errorf("--%s %d: must be %d to %d", limit.name, *v, limit.least, limit.most)
		}
	}
	return nil
}

var isUUID = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// String returns the options in the syntax of /dev/nvme-fabrics.
func (o Options) String() string {
	pairs := []string{"transport=" + o.Transport, "traddr=" + o.Addr.String(), fmt.Sprintf("trsvcid=%d", o.Port), "nqn=" + o.NQN}
	texts := []struct{ name, value string }{{"hostnqn", o.HostNQN}, {"hostid", o.HostID}, {"host_iface", o.HostIface}}
	for _, t := range texts {
		if t.value != "" {
			pairs = append(pairs, t.name+"="+t.value)
		}
	}
	if o.HostAddr.IsValid() {
		pairs = append(pairs, "host_traddr="+o.HostAddr.String())
	}
	for _, n := range []struct {
		name  string
		value *int
	}{
		{"nr_io_queues", o.IOQueues}, {"nr_write_queues", o.WriteQueues}, {"nr_poll_queues", o.PollQueues}, {"queue_size", o.QueueSize},
		{"keep_alive_tmo", o.KeepAlive}, {"ctrl_loss_tmo", o.CtrlLossTMO}, {"reconnect_delay", o.ReconnectDelay}, {"tos", o.TOS},
	} {
		if n.value != nil {
			pairs = append(pairs, n.name+"="+strconv.Itoa(*n.value))
		}
	}
	for _, f := range []struct {
		name string
		on   bool
	}{{"hdr_digest", o.HeaderDigest}, {"data_digest", o.DataDigest}, {"duplicate_connect", o.DuplicateConn}} {
		if f.on {
			pairs = append(pairs, f.name)
		}
	}
	return strings.Join(pairs, ",")
}

// Files of nvme-cli with this host's identity.
const (
	hostNQNFile = "/etc/nvme/hostnqn"
	hostIDFile  = "/etc/nvme/hostid"
)

// Identify returns the options with HostNQN and HostID filled in from nvme-cli's files, if they are
// empty. Without these files the kernel uses a random NQN until the next boot. A HostNQN without a
// HostID gets one derived from it, as the kernel refuses two NQNs with the same ID.
func (o Options) Identify() Options {
	if o.HostNQN == "" {
		o.HostNQN = firstLine(hostNQNFile)
		if o.HostID == "" {
			o.HostID = firstLine(hostIDFile)
		}
	}
	if o.HostNQN != "" && o.HostID == "" {
		o.HostID = hostIDOf(o.HostNQN)
	}
	return o
}

func hostIDOf(nqn string) string {
	if _, uuid, found := strings.Cut(nqn, ":uuid:"); found && isUUID.MatchString(uuid) {
		return uuid
	}
	sum := sha1.Sum([]byte("krping nvme host\x00" + nqn))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80 // version 5 of RFC 9562
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}
