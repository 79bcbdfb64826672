// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"regexp"
	"slices"
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
	FastIOFail     *int // seconds of a lost target after which I/O fails; -1: with CtrlLossTMO only
	TOS            *int
	HeaderDigest   bool // TCP
	DataDigest     bool // TCP
	TLS            bool // TCP
	DisableSQFlow  bool // do without flow control of submission queues
	DuplicateConn  bool
	Secret         string // DH-HMAC-CHAP key of this host; never in a message
	CtrlSecret     string // DH-HMAC-CHAP key of the controller, which must authenticate, too; never in a message
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
	case o.Transport != "tcp" && o.TLS:
		return fmt.Errorf("--tls is for --transport tcp")
	case o.CtrlSecret != "" && o.Secret == "":
		return fmt.Errorf("--dhchap-ctrl-secret needs --dhchap-secret: a controller authenticates only to a host that does")
	case strings.ContainsAny(o.NQN+o.HostNQN+o.HostID+o.HostIface, ",\n"):
		return fmt.Errorf("--nqn, --hostnqn, --hostid and --host-iface must not contain a comma")
	case o.HostID != "" && !isUUID.MatchString(o.HostID):
		return fmt.Errorf("--hostid %s: not a UUID", o.HostID)
	}
	for name, secret := range map[string]string{"--dhchap-secret": o.Secret, "--dhchap-ctrl-secret": o.CtrlSecret} {
		if err := checkSecret(secret); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, limit := range []struct {
		name        string
		value       *int
		least, most int
	}{
		{"nr-io-queues", o.IOQueues, 1, 65535}, {"nr-write-queues", o.WriteQueues, 1, 65535}, {"nr-poll-queues", o.PollQueues, 1, 65535},
		{"queue-size", o.QueueSize, 16, 1024}, {"keep-alive-tmo", o.KeepAlive, 0, 1 << 30}, {"ctrl-loss-tmo", o.CtrlLossTMO, -1, 1 << 30},
		{"reconnect-delay", o.ReconnectDelay, 1, 1 << 30}, {"fast-io-fail-tmo", o.FastIOFail, -1, 1 << 30}, {"tos", o.TOS, 0, 255},
	} {
		if v := limit.value; v != nil && (*v < limit.least || *v > limit.most) {
			return fmt.Errorf("--%s %d: must be %d to %d", limit.name, *v, limit.least, limit.most)
		}
	}
	return nil
}

// checkSecret returns an error if a DH-HMAC-CHAP key is not in the representation of the NVM Express Base
// Specification, DHHC-1:HASH:KEY:, where KEY is the key and its CRC-32 in Base64. The error does not have
// the key.
func checkSecret(secret string) error {
	if secret == "" {
		return nil
	}
	const want = "must be like DHHC-1:00:...: (nvme gen-dhchap-key makes one)"
	fields := strings.Split(secret, ":")
	if len(fields) != 4 || fields[0] != "DHHC-1" || fields[3] != "" || !slices.Contains([]string{"00", "01", "02", "03"}, fields[1]) {
		return errors.New(want)
	}
	key, err := base64.StdEncoding.DecodeString(fields[2])
	if err != nil || !slices.Contains([]int{32, 48, 64}, len(key)-4) {
		return fmt.Errorf("%s, with 32, 48 or 64 bytes and a checksum in Base64", want)
	}
	if n := len(key) - 4; binary.LittleEndian.Uint32(key[n:]) != crc32.ChecksumIEEE(key[:n]) {
		return errors.New("its checksum is wrong: a character was lost or changed")
	}
	return nil
}

var isUUID = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// String returns the options in the syntax of /dev/nvme-fabrics.
func (o Options) String() string {
	pairs := []string{"transport=" + o.Transport, "traddr=" + o.Addr.String(), fmt.Sprintf("trsvcid=%d", o.Port), "nqn=" + o.NQN}
	texts := []struct{ name, value string }{{"hostnqn", o.HostNQN}, {"hostid", o.HostID}, {"host_iface", o.HostIface}, {"dhchap_secret", o.Secret}, {"dhchap_ctrl_secret", o.CtrlSecret}}
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
		{"keep_alive_tmo", o.KeepAlive}, {"ctrl_loss_tmo", o.CtrlLossTMO}, {"reconnect_delay", o.ReconnectDelay}, {"fast_io_fail_tmo", o.FastIOFail},
		{"tos", o.TOS},
	} {
		if n.value != nil {
			pairs = append(pairs, n.name+"="+strconv.Itoa(*n.value))
		}
	}
	for _, f := range []struct {
		name string
		on   bool
	}{{"hdr_digest", o.HeaderDigest}, {"data_digest", o.DataDigest}, {"tls", o.TLS}, {"disable_sqflow", o.DisableSQFlow}, {"duplicate_connect", o.DuplicateConn}} {
		if f.on {
			pairs = append(pairs, f.name)
		}
	}
	return strings.Join(pairs, ",")
}

// unsupported returns the options that the kernel lacks; has is what /dev/nvme-fabrics says it has.
func (o Options) unsupported(has string) []string {
	known := map[string]bool{}
	for option := range strings.SplitSeq(strings.TrimSpace(has), ",") {
		name, _, _ := strings.Cut(option, "=")
		known[name] = true
	}
	if !known["transport"] { // before 5.18 the kernel did not say
		return nil
	}
	var lacks []string
	for option := range strings.SplitSeq(o.String(), ",") {
		if name, _, _ := strings.Cut(option, "="); !known[name] {
			lacks = append(lacks, name)
		}
	}
	return lacks
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
