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

// Options of a connection; their names are those of nvme-cli. A nil pointer is the kernel's
// default.
type Options struct {
	Transport     string // rdma or tcp
	Addr          netip.Addr
	Port          uint16
	NQN           string
	HostAddr      netip.Addr // to connect from, if valid
	HostIface     string     // TCP: network device to connect through
	HostNQN       string
	HostID        string
	IOQueues      *int
	WriteQueues   *int
	PollQueues    *int
	QueueSize     *int
	KeepAlive     *int // seconds
	LossTMO       *int // seconds; -1: try for ever
	Delay         *int // seconds between tries to reconnect
	TOS           *int
	HeaderDigest  bool // TCP
	DataDigest    bool // TCP
	DuplicateConn bool
}

// Check says what is wrong with options, by nvme-cli's names.
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
		return fmt.Errorf("a name must have no comma")
	case o.HostID != "" && !isUUID.MatchString(o.HostID):
		return fmt.Errorf("--hostid %s: not a UUID", o.HostID)
	}
	for _, limit := range []struct {
		name        string
		value       *int
		least, most int
	}{
		{"nr-io-queues", o.IOQueues, 1, 65535}, {"nr-write-queues", o.WriteQueues, 1, 65535}, {"nr-poll-queues", o.PollQueues, 1, 65535},
		{"queue-size", o.QueueSize, 16, 1024}, {"keep-alive-tmo", o.KeepAlive, 0, 1 << 30}, {"ctrl-loss-tmo", o.LossTMO, -1, 1 << 30},
		{"reconnect-delay", o.Delay, 1, 1 << 30}, {"tos", o.TOS, 0, 255},
	} {
		if v := limit.value; v != nil && (*v < limit.least || *v > limit.most) {
			return fmt.Errorf("--%s %d: must be %d to %d", limit.name, *v, limit.least, limit.most)
		}
	}
	return nil
}

var isUUID = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// String returns them as /dev/nvme-fabrics takes them.
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
		{"keep_alive_tmo", o.KeepAlive}, {"ctrl_loss_tmo", o.LossTMO}, {"reconnect_delay", o.Delay}, {"tos", o.TOS},
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

// Where nvme-cli keeps who this host is.
const (
	hostNQNFile = "/etc/nvme/hostnqn"
	hostIDFile  = "/etc/nvme/hostid"
)

// Identify fills in who this host is from nvme-cli's files, where nothing is given. Without
// them the kernel draws a name, until the next boot. A name without an identifier gets one that
// follows from it: the kernel refuses two names with one identifier.
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
