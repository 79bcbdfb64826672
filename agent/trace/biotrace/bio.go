// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Bio is a bio that has ended. Stages that it did not have are 0.
type Bio struct {
	Time     time.Time     `json:"time"` // of submission
	PID      uint32        `json:"pid"`
	TID      uint32        `json:"tid"`
	Comm     string        `json:"comm"`
	CGroup   string        `json:"cgroup"` // path below /sys/fs/cgroup
	Device   string        `json:"device"`
	Op       string        `json:"op"`
	Flags    string        `json:"flags,omitempty"`
	Sector   uint64        `json:"sector"` // of 512 bytes
	Bytes    uint32        `json:"bytes"`
	Queue    time.Duration `json:"queue_ns"`
	Send     time.Duration `json:"send_ns,omitempty"`
	Peer     time.Duration `json:"peer_ns,omitempty"`
	Finish   time.Duration `json:"finish_ns,omitempty"`
	Total    time.Duration `json:"total_ns"`
	Status   uint32        `json:"status"`             // blk_status_t: 0 is success
	HWQueue  uint16        `json:"hwqueue"`            // hardware queue of its request
	Tag      uint16        `json:"tag"`                // on the wire if it had a command, else the driver's
	Session  uint32        `json:"session,omitempty"`  // of the module
	CRC      uint32        `json:"crc,omitempty"`      // CRC32C of the command's data
	Requeues uint16        `json:"requeues,omitempty"` // times that its request was returned to the block layer
	Parts    uint16        `json:"parts,omitempty"`    // requests that it was split into; 0 for a device without requests
	Merged   bool          `json:"merged,omitempty"`   // shared its request with other bios
}

// Stage is an interval in the life of a bio.
type Stage uint8

// The stages. A bio of a krping device has queue, send, peer and finish, one after the other; a bio of
// another device has queue and device.
const (
	StageQueue  Stage = iota // from submission until its request is issued to the driver
	StageSend                // until its command is posted in a message; if posted again, the last time
	StagePeer                // until the response is accepted
	StageFinish              // until the bio ends
	StageDevice              // from issue until the bio ends
	StageTotal               // from submission until the bio ends
	numStages
)

var stageNames = [numStages]string{"queue", "send", "peer", "finish", "device", "total"}

func (s Stage) String() string { return stageNames[s] }

// Stages returns all stages.
func Stages() []Stage {
	all := make([]Stage, numStages)
	for i := range all {
		all[i] = Stage(i)
	}
	return all
}

// Stage returns how long the bio was in a stage, or 0 if it did not have it.
func (b *Bio) Stage(s Stage) time.Duration {
	switch s {
	case StageQueue:
		return b.Queue
	case StageSend:
		return b.Send
	case StagePeer:
		return b.Peer
	case StageFinish:
		return b.Finish
	case StageDevice:
		if b.Queue == 0 {
			return 0
		}
		return b.Total - b.Queue
	default:
		return b.Total
	}
}

// Slowest returns the longest of the stages that follow one another, or StageTotal if only that is known.
func (b *Bio) Slowest() Stage {
	candidates := []Stage{StageQueue, StageDevice}
	switch {
	case b.Peer != 0:
		candidates = []Stage{StageQueue, StageSend, StagePeer, StageFinish}
	case b.Queue == 0:
		return StageTotal
	}
	slowest := candidates[0]
	for _, s := range candidates {
		if b.Stage(s) > b.Stage(slowest) {
			slowest = s
		}
	}
	return slowest
}

func toEvent(sample []byte) (*bioEvent, error) {
	if len(sample) < int(unsafe.Sizeof(bioEvent{})) {
		return nil, fmt.Errorf("event of the trace program has %d bytes, want %d", len(sample), unsafe.Sizeof(bioEvent{}))
	}
	return (*bioEvent)(unsafe.Pointer(&sample[0])), nil
}

// decoder turns events into bios. It caches strings, so that it does not allocate for each bio.
type decoder struct {
	zero    time.Time // when CLOCK_MONOTONIC was 0
	devices *deviceNames
	cgroups *cgroupNames
	comms   map[[16]int8]string
	ops     map[uint32]opNames // by bi_opf
	last    Bio
	key     nameKey // of last's names
	named   bool    // last has names
}

// nameKey is what the names in a Bio come from. They are mostly those of the bio before.
type nameKey struct {
	comm     [16]int8
	cgroup   uint64
	dev, opf uint32
	empty    bool
}

type opNames struct{ op, flags string }

// maxNames is the size at which the cache of process names is cleared.
const maxNames = 4096

func (d *decoder) comm(c [16]int8) string {
	name, ok := d.comms[c]
	if !ok {
		if len(d.comms) > maxNames {
			clear(d.comms)
		}
		name = text(c[:])
		d.comms[c] = name
	}
	return name
}

func (d *decoder) op(opf, bytes uint32) opNames {
	if bytes == 0 {
		return opNames{opName(opf, bytes), flagNames(opf)}
	}
	names, ok := d.ops[opf]
	if !ok {
		names = opNames{opName(opf, bytes), flagNames(opf)}
		d.ops[opf] = names
	}
	return names
}

func newDecoder(hidden *ebpf.Map) decoder {
	now := monotonic()
	return decoder{
		zero:    time.Now().Add(-time.Duration(now)),
		devices: newDeviceNames(hidden), cgroups: newCGroupNames(cgroupMount),
		comms: map[[16]int8]string{}, ops: map[uint32]opNames{},
	}
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds.
func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return uint64(now.Nano())
}

// bio returns the bio of an event. It is valid until the next call.
func (d *decoder) bio(e *bioEvent) *Bio {
	if key := (nameKey{e.Comm, e.Cgroup, e.Dev, e.Opf, e.Bytes == 0}); !d.named || key != d.key {
		op := d.op(e.Opf, e.Bytes)
		d.last.Comm, d.last.CGroup, d.last.Device = d.comm(e.Comm), d.cgroups.name(e.Cgroup), d.devices.name(e.Dev)
		d.last.Op, d.last.Flags = op.op, op.flags
		d.key, d.named = key, true
	}
	d.last = Bio{
		Time: d.zero.Add(time.Duration(e.QueuedNs)),
		PID:  e.Pid, TID: e.Tid, Comm: d.last.Comm, CGroup: d.last.CGroup,
		Device: d.last.Device, Op: d.last.Op, Flags: d.last.Flags,
		Sector: e.Sector, Bytes: e.Bytes,
		Queue: between(e.QueuedNs, e.IssuedNs), Total: between(e.QueuedNs, e.DoneNs),
		Status: e.Status, HWQueue: e.Queue, Tag: e.Tag, Session: e.Session, CRC: e.Crc,
		Requeues: e.Requeues, Parts: e.Parts, Merged: e.Merged != 0,
	}
	if e.PostedNs != 0 && e.AnsweredNs != 0 {
		d.last.Send = between(e.IssuedNs, e.PostedNs)
		d.last.Peer = between(e.PostedNs, e.AnsweredNs)
		d.last.Finish = between(e.AnsweredNs, e.DoneNs)
	}
	return &d.last
}

// between returns the time between two timestamps: at least 1 ns if both are set, else 0.
func between(from, to uint64) time.Duration {
	if from == 0 || to == 0 {
		return 0
	}
	return max(time.Duration(to-from), 1)
}

// text returns the bytes before the first NUL.
func text(c []int8) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&c[0])), len(c))
	for i, ch := range b {
		if ch == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
