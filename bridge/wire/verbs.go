// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Sizes in bytes and limits of the verbs test (kmod/PROTOCOL.md section 1.3).
const (
	VerbsHelloSize   = 48
	VerbsMessageSize = 64
	VerbsQPsMax      = 1024
	VerbsSizeMax     = 1 << 30
	VerbsSecondsMax  = 86400 // of Duration
	VerbsDepthMax    = 16384
	VerbsSlotsMax    = VerbsDepthMax + 1
	VerbsCheckDepth  = 4   // receives for CHECK on each data queue pair
	VerbsQuietMS     = 200 // UC, UD: what has not arrived after that is lost
	VerbsStallMS     = 100 // UC: without credit for so long, ask for it
)

// VerbsControlDepth returns how many receives each side has posted on the control connection.
func VerbsControlDepth(qps int) int { return 4*qps + 8 }

// VerbsSlot returns how many bytes there are from one slot to the next.
func VerbsSlot(size int) int { return (size + 63) &^ 63 }

// VerbsBatch returns after how many messages a target with so many slots gives credit.
func VerbsBatch(slots int) int { return (slots + 1) / 2 }

// Verb is the operation that a verbs test measures.
type Verb uint8

// Verbs of enum krping_verb.
const (
	VerbSend Verb = iota + 1
	VerbWrite
	VerbWriteImmediate
	VerbRead
	VerbFetchAdd
	VerbCompareSwap
)

var verbNames = [...]string{VerbSend: "send", VerbWrite: "write", VerbWriteImmediate: "write_imm", VerbRead: "read", VerbFetchAdd: "fetch_add", VerbCompareSwap: "cmp_swap"}

func (v Verb) String() string { return nameOf(verbNames[:], int(v)) }

// ParseVerb returns the verb of a name.
func ParseVerb(name string) (Verb, bool) {
	i := slices.Index(verbNames[:], name)
	return Verb(i), i > 0
}

// VerbNames returns the names of all verbs.
func VerbNames() []string { return verbNames[1:] }

// Receives reports whether a message consumes one of the target's receives.
func (v Verb) Receives() bool { return v == VerbSend || v == VerbWriteImmediate }

// IsAtomic reports whether it is an operation on a counter.
func (v Verb) IsAtomic() bool { return v == VerbFetchAdd || v == VerbCompareSwap }

// Fetches reports whether the target's device answers with data.
func (v Verb) Fetches() bool { return v == VerbRead || v.IsAtomic() }

// QPType is the type of the data queue pairs.
type QPType uint8

// Types of enum krping_verbs_qp_type.
const (
	RC QPType = iota + 1
	UC
	UD
)

var qpTypeNames = [...]string{RC: "rc", UC: "uc", UD: "ud"}

func (t QPType) String() string { return nameOf(qpTypeNames[:], int(t)) }

// ParseQPType returns the type of a name.
func ParseQPType(name string) (QPType, bool) {
	i := slices.Index(qpTypeNames[:], name)
	return QPType(i), i > 0
}

// Carries reports whether queue pairs of the type have a verb.
func (t QPType) Carries(v Verb) bool {
	switch t {
	case RC:
		return true
	case UC:
		return !v.Fetches()
	}
	return v == VerbSend
}

// Measure is what a verbs test measures.
type Measure uint8

// Measures of enum krping_verbs_measure.
const (
	Bandwidth Measure = iota + 1 // many messages in flight
	Latency                      // one message in flight
)

var measureNames = [...]string{Bandwidth: "bw", Latency: "lat"}

func (m Measure) String() string { return nameOf(measureNames[:], int(m)) }

func nameOf(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("%d", i)
}

// VerbsHello is the private data of a client of a verbs test: what either side has to know.
type VerbsHello struct {
	Size       uint32 // bytes of a message
	QPs        uint16 // data queue pairs
	Group      uint16 // the same on all connections of the client
	Verb       Verb
	QPType     QPType
	Measure    Measure
	Duplex     bool
	Validate   bool
	SRQ        bool
	Inline     bool
	Connection uint16 // 0: control connection; i + 1: data queue pair i
	MTU        uint16 // bytes; 0: what the path allows
	Count      uint32 // messages of each queue pair; 0: no limit
	Duration   uint32 // seconds; 0: no limit
	Rate       uint32 // messages a second of all queue pairs; 0: no limit
	TxDepth    uint16
	RxDepth    uint16
	Signal     uint16 // one message in so many is signalled
	Reads      uint8  // outstanding on a queue pair
}

const (
	verbsDuplex   = 0x01
	verbsValidate = 0x02
	verbsSRQ      = 0x04
)

// IsVerbsHello reports whether private data begins a verbs test.
func IsVerbsHello(b []byte) bool {
	h, found, err := DecodeTestHello(b)
	return found && err == nil && h.Test == TestVerbs
}

// Append adds the 48 bytes of the hello to b.
func (h VerbsHello) Append(b []byte) []byte {
	b = TestHello{Test: TestVerbs, Size: h.Size, QPs: h.QPs, Group: h.Group}.Append(b)
	var flags byte
	for flag, set := range map[byte]bool{verbsDuplex: h.Duplex, verbsValidate: h.Validate, verbsSRQ: h.SRQ} {
		if set {
			flags |= flag
		}
	}
	b = append(b, byte(h.Verb), byte(h.QPType), byte(h.Measure), flags)
	b = binary.BigEndian.AppendUint16(b, h.Connection)
	b = binary.BigEndian.AppendUint16(b, h.MTU)
	b = binary.BigEndian.AppendUint32(b, h.Count)
	b = binary.BigEndian.AppendUint32(b, h.Duration)
	b = binary.BigEndian.AppendUint32(b, h.Rate)
	b = binary.BigEndian.AppendUint16(b, h.TxDepth)
	b = binary.BigEndian.AppendUint16(b, h.RxDepth)
	b = binary.BigEndian.AppendUint16(b, h.Signal)
	var inline uint16
	if h.Inline {
		inline = uint16(h.Size)
	}
	b = binary.BigEndian.AppendUint16(b, inline)
	return append(b, h.Reads, 0, 0, 0)
}

// DecodeVerbsHello decodes and checks private data, which the transport may have padded. It does not
// compare it with what a server serves. The error is a *Reject.
func DecodeVerbsHello(b []byte) (VerbsHello, error) {
	t, found, err := DecodeTestHello(b)
	if err != nil {
		return VerbsHello{}, err
	}
	if !found || t.Test != TestVerbs || len(b) < VerbsHelloSize {
		return VerbsHello{}, invalid("%d bytes are not the hello of a verbs test", len(b))
	}
	p := b[TestHelloSize:]
	h := VerbsHello{
		Size: t.Size, QPs: t.QPs, Group: t.Group,
		Verb: Verb(p[0]), QPType: QPType(p[1]), Measure: Measure(p[2]),
		Duplex: p[3]&verbsDuplex != 0, Validate: p[3]&verbsValidate != 0, SRQ: p[3]&verbsSRQ != 0,
		Connection: binary.BigEndian.Uint16(p[4:]),
		MTU:        binary.BigEndian.Uint16(p[6:]),
		Count:      binary.BigEndian.Uint32(p[8:]),
		Duration:   binary.BigEndian.Uint32(p[12:]),
		Rate:       binary.BigEndian.Uint32(p[16:]),
		TxDepth:    binary.BigEndian.Uint16(p[20:]),
		RxDepth:    binary.BigEndian.Uint16(p[22:]),
		Signal:     binary.BigEndian.Uint16(p[24:]),
		Reads:      p[28],
	}
	inline := uint32(binary.BigEndian.Uint16(p[26:]))
	h.Inline = inline != 0
	switch {
	case t.ServerInv || t.Duplex:
		return h, invalid("flags of another test")
	case p[3]&^(verbsDuplex|verbsValidate|verbsSRQ) != 0:
		return h, invalid("unknown flags in %#x", p[3])
	case p[29]|p[30]|p[31] != 0:
		return h, invalid("reserved bytes that are not 0")
	case h.Inline && inline != h.Size:
		return h, invalid("inline %d: must be 0, or the size of %d bytes", inline, h.Size)
	}
	return h, h.Check()
}

func invalid(format string, args ...any) *Reject { return reject(RejectInvalid, 0, format, args...) }

// Check checks that the parts of a hello fit together. The error is a *Reject.
func (h VerbsHello) Check() error {
	for _, check := range []func() string{h.checkKind, h.checkQueues, h.checkLength, h.checkDepths} {
		if wrong := check(); wrong != "" {
			return invalid("%s", wrong)
		}
	}
	return nil
}

func (h VerbsHello) checkKind() string {
	switch {
	case h.Verb < VerbSend || h.Verb > VerbCompareSwap:
		return fmt.Sprintf("verb %d: must be 1 to 6", h.Verb)
	case h.QPType < RC || h.QPType > UD:
		return fmt.Sprintf("type %d of queue pairs: must be 1 to 3", h.QPType)
	case h.Measure < Bandwidth || h.Measure > Latency:
		return fmt.Sprintf("measure %d: must be 1 or 2", h.Measure)
	case !h.QPType.Carries(h.Verb):
		return fmt.Sprintf("%s queue pairs have no %s", h.QPType, h.Verb)
	case h.Measure == Latency && (h.Duplex || h.SRQ || h.Rate > 0):
		return "duplex, srq and rate are for bw only"
	case h.SRQ && !h.Verb.Receives():
		return fmt.Sprintf("srq: %s takes no receives", h.Verb)
	}
	return ""
}

func (h VerbsHello) checkQueues() string {
	most := uint16(VerbsQPsMax)
	if h.Measure == Latency {
		most = 1
	}
	connections := uint16(0)
	if h.QPType == RC {
		connections = h.QPs
	}
	switch {
	case h.QPs < 1 || h.QPs > most:
		return fmt.Sprintf("%d queue pairs: must be 1 to %d", h.QPs, most)
	case h.Connection > connections:
		return fmt.Sprintf("connection %d of a test with %d %s queue pairs", h.Connection, h.QPs, h.QPType)
	case h.Count > 0 && h.Duration > 0:
		return "both a count and a duration"
	case h.Duration > VerbsSecondsMax:
		return fmt.Sprintf("duration %d: must be at most %d seconds", h.Duration, VerbsSecondsMax)
	}
	return ""
}

func (h VerbsHello) checkLength() string {
	switch {
	case h.Size == 0 || h.Size > VerbsSizeMax || h.Verb.IsAtomic() && h.Size != 8:
		return fmt.Sprintf("size %d: must be 1 to %d bytes, of an atomic operation 8", h.Size, VerbsSizeMax)
	case h.QPType != RC && h.Validate && h.Size < 4:
		return fmt.Sprintf("size %d: must be 4 bytes or more to validate %s", h.Size, h.QPType)
	case h.MTU != 0 && !slices.Contains([]uint16{256, 512, 1024, 2048, 4096}, h.MTU):
		return fmt.Sprintf("mtu %d: must be 256, 512, 1024, 2048 or 4096", h.MTU)
	case h.Inline && h.Verb.Fetches():
		return fmt.Sprintf("inline: %s sends no data", h.Verb)
	case h.Inline && h.Size > 0xffff:
		return fmt.Sprintf("inline: must be at most 65535 bytes, not %d", h.Size)
	}
	return ""
}

func (h VerbsHello) checkDepths() string {
	most, least, receives := uint16(VerbsDepthMax), uint16(1), uint16(VerbsDepthMax)
	if h.Measure == Latency {
		most = 1
	}
	if h.SRQ {
		least = h.QPs
	}
	if !h.Verb.Receives() {
		least, receives = 0, 0
	}
	switch {
	case h.TxDepth < 1 || h.TxDepth > most:
		return fmt.Sprintf("txdepth %d: must be 1 to %d", h.TxDepth, most)
	case h.RxDepth < least || h.RxDepth > receives:
		return fmt.Sprintf("rxdepth %d: must be %d to %d", h.RxDepth, least, receives)
	case h.Signal < 1 || h.Signal > h.TxDepth:
		return fmt.Sprintf("signal %d: must be 1 to txdepth, %d", h.Signal, h.TxDepth)
	case h.Verb.Fetches() != (h.Reads > 0):
		return fmt.Sprintf("reads %d of %s: must be 1 or more for read and atomics, else 0", h.Reads, h.Verb)
	}
	return ""
}

// Need is what a device cannot do, or not as much of.
type Need uint8

// Needs of enum krping_verbs_need.
const (
	NeedUC Need = iota + 1
	NeedUD
	NeedSRQ
	NeedAtomics
	NeedImmediate
	NeedMTU
	NeedWR // this and the next: a limit is known
	NeedSRQWR
	NeedInline
	NeedReads
	NeedCQE
	NeedQP
)

const (
	needShift    = 24
	needLimitMax = 0xffffff
)

var needTexts = [...]string{
	NeedUC: "uc queue pairs", NeedUD: "ud queue pairs", NeedSRQ: "shared receive queues", NeedAtomics: "atomic operations",
	NeedImmediate: "immediate data", NeedMTU: "packets of another mtu", NeedWR: "work requests in a queue", NeedSRQWR: "work requests in a shared receive queue",
	NeedInline: "bytes of inline data", NeedReads: "outstanding reads and atomics", NeedCQE: "entries in a completion queue", NeedQP: "queue pairs",
}

// RejectNeed returns the reject for what a device cannot do; limit is what it can, where it has one.
func RejectNeed(need Need, limit int) *Reject {
	value := uint32(need)<<needShift | uint32(min(max(limit, 0), needLimitMax))
	r := &Reject{Version: 1, Reason: RejectDevice, Value: value}
	r.Detail = "this RDMA device " + r.Lacks()
	return r
}

// Lacks says what the device of a reject with RejectDevice cannot do.
func (r *Reject) Lacks() string {
	need, limit := int(r.Value>>needShift), r.Value&needLimitMax
	text := nameOf(needTexts[:], need)
	if need >= int(NeedWR) {
		return fmt.Sprintf("has at most %d %s", limit, text)
	}
	return "has no " + text
}

// VerbsMessageType is the type of a message on the control connection.
type VerbsMessageType uint8

// Types of enum krping_verbs_msg_type.
const (
	VerbsQueue VerbsMessageType = iota + 1
	VerbsGo
	VerbsCheck
	VerbsCredit
	VerbsDone
	VerbsReport
	VerbsError
)

func (t VerbsMessageType) String() string {
	return nameOf([]string{VerbsQueue: "QUEUE", VerbsGo: "GO", VerbsCheck: "CHECK", VerbsCredit: "CREDIT", VerbsDone: "DONE", VerbsReport: "REPORT", VerbsError: "ERROR"}, int(t))
}

// VerbsErrorCode says why a side ends a test; Number of a VerbsError message.
type VerbsErrorCode uint64

// Codes of enum krping_verbs_error.
const (
	VerbsErrorResources VerbsErrorCode = iota + 1
	VerbsErrorProtocol
	VerbsErrorStopped
	VerbsErrorTimeout
	VerbsErrorDevice
)

func (c VerbsErrorCode) String() string {
	return nameOf([]string{
		VerbsErrorResources: "it is out of memory or RDMA resources", VerbsErrorProtocol: "it says that this side broke the protocol",
		VerbsErrorStopped: "a user stopped it", VerbsErrorTimeout: "it says that this side did not go on", VerbsErrorDevice: "its RDMA device failed",
	}, int(c))
}

// Damage says what the first wrong word of a message is.
type Damage uint8

// Kinds of enum krping_verbs_damage.
const (
	Intact  Damage = iota
	Foreign        // of another queue pair, or of the other direction
	Shifted        // of another place in the message
	Stale          // all of it is another message
	Torn           // a part of it is another message
	Damaged        // nothing that anyone has sent
)

func (d Damage) String() string {
	return nameOf([]string{"intact", "foreign", "shifted", "stale", "torn", "damaged"}, int(d))
}

// VerbsInfo is a data queue pair and the memory that the peer accesses by it.
type VerbsInfo struct {
	QPN   uint32
	PSN   uint32 // of the first packet that it sends
	QKey  uint32
	Slots uint32
	Addr  uint64
	Rkey  uint32
}

// VerbsReportBody is what has arrived, in messages.
type VerbsReportBody struct {
	Received  uint64
	Lost      uint64
	Repeated  uint64
	Reordered uint64
	Damaged   uint64
	Number    uint64 // of the first damaged one
	Offset    uint32 // of its first wrong byte
	Damage    Damage
}

// VerbsMessage is the message of the control connection.
type VerbsMessage struct {
	Type   VerbsMessageType
	Queue  uint16
	Number uint64          // of CHECK, CREDIT, DONE and ERROR
	Info   VerbsInfo       // of QUEUE
	Report VerbsReportBody // of REPORT
}

// Append adds the 64 bytes of the message to b.
func (m VerbsMessage) Append(b []byte) []byte {
	end := len(b) + VerbsMessageSize
	b = append(b, byte(m.Type), 0)
	b = binary.BigEndian.AppendUint16(b, m.Queue)
	b = binary.BigEndian.AppendUint32(b, 0)
	switch m.Type {
	case VerbsQueue:
		for _, v := range []uint32{m.Info.QPN, m.Info.PSN, m.Info.QKey, m.Info.Slots} {
			b = binary.BigEndian.AppendUint32(b, v)
		}
		b = binary.BigEndian.AppendUint64(b, m.Info.Addr)
		b = binary.BigEndian.AppendUint32(b, m.Info.Rkey)
	case VerbsReport:
		r := m.Report
		for _, v := range []uint64{r.Received, r.Lost, r.Repeated, r.Reordered, r.Damaged, r.Number} {
			b = binary.BigEndian.AppendUint64(b, v)
		}
		b = binary.BigEndian.AppendUint32(b, r.Offset)
		b = append(b, byte(r.Damage))
	default:
		b = binary.BigEndian.AppendUint64(b, m.Number)
	}
	return append(b, make([]byte, end-len(b))...)
}

// DecodeVerbsMessage decodes a message, which must have exactly VerbsMessageSize bytes, and checks what
// can be checked without knowing the test.
func DecodeVerbsMessage(b []byte) (VerbsMessage, error) {
	if len(b) != VerbsMessageSize {
		return VerbsMessage{}, fmt.Errorf("control message of %d bytes, want %d", len(b), VerbsMessageSize)
	}
	m := VerbsMessage{Type: VerbsMessageType(b[0]), Queue: binary.BigEndian.Uint16(b[2:])}
	body := b[8:]
	var used int
	switch m.Type {
	case VerbsQueue:
		m.Info = VerbsInfo{
			QPN: binary.BigEndian.Uint32(body), PSN: binary.BigEndian.Uint32(body[4:]), QKey: binary.BigEndian.Uint32(body[8:]),
			Slots: binary.BigEndian.Uint32(body[12:]), Addr: binary.BigEndian.Uint64(body[16:]), Rkey: binary.BigEndian.Uint32(body[24:]),
		}
		used = 28
	case VerbsReport:
		m.Report = VerbsReportBody{
			Received: binary.BigEndian.Uint64(body), Lost: binary.BigEndian.Uint64(body[8:]), Repeated: binary.BigEndian.Uint64(body[16:]),
			Reordered: binary.BigEndian.Uint64(body[24:]), Damaged: binary.BigEndian.Uint64(body[32:]), Number: binary.BigEndian.Uint64(body[40:]),
			Offset: binary.BigEndian.Uint32(body[48:]), Damage: Damage(body[52]),
		}
		used = 53
	case VerbsCheck, VerbsCredit, VerbsDone, VerbsError:
		m.Number = binary.BigEndian.Uint64(body)
		used = 8
	case VerbsGo:
	default:
		return m, fmt.Errorf("control message of unknown type %d", b[0])
	}
	if !isZero(b[1:2]) || !isZero(b[4:8]) || !isZero(body[used:]) {
		return m, fmt.Errorf("%s with reserved or unused bytes that are not 0", m.Type)
	}
	return m, m.check()
}

func isZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

func (m VerbsMessage) check() error {
	r := m.Report
	switch {
	case m.Queue >= VerbsQPsMax || m.Queue != 0 && (m.Type == VerbsGo || m.Type == VerbsDone || m.Type == VerbsError):
		return fmt.Errorf("%s of queue pair %d", m.Type, m.Queue)
	case m.Info.PSN > 0xffffff || m.Info.QPN > 0xffffff || m.Info.QKey > 0x7fffffff:
		return fmt.Errorf("QUEUE with number %#x, PSN %#x or queue key %#x out of range", m.Info.QPN, m.Info.PSN, m.Info.QKey)
	case m.Type == VerbsError && (m.Number < uint64(VerbsErrorResources) || m.Number > uint64(VerbsErrorDevice)):
		return fmt.Errorf("ERROR with unknown reason %d", m.Number)
	case r.Damage > Damaged || (r.Damaged > 0) != (r.Damage != Intact):
		return fmt.Errorf("REPORT of %d damaged messages with damage %d", r.Damaged, r.Damage)
	case r.Damaged == 0 && m.Type == VerbsReport && (m.Queue != 0 || r.Number != 0 || r.Offset != 0):
		return fmt.Errorf("REPORT of damage in queue pair %d, message %d, without damage", m.Queue, r.Number)
	}
	return nil
}
