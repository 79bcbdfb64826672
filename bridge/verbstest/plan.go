// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"math"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// latencySends is the send queue of a latency test: one message in half of it is signalled, because the
// answer tells that the message has arrived.
const latencySends = 16

// maxSlots is the most memory for the slots of all queue pairs of a validated test, in bytes, unless one slot
// each needs more.
const maxSlots = 256 << 20

// plan is what a test means for one side.
type plan struct {
	wire.VerbsHello
	isServer bool
	sends    bool // it is the initiator of messages
	receives bool // it is the target of messages
	signal   uint64
}

func planOf(h wire.VerbsHello, isServer bool) plan {
	both := h.Duplex || h.Measure == wire.Latency && !h.Verb.Fetches()
	p := plan{VerbsHello: h, isServer: isServer, sends: both || !isServer, receives: both || isServer, signal: uint64(h.Signal)}
	if both && p.isLatency() {
		p.signal = latencySends / 2
	}
	return p
}

// setupTimeout returns how long a step of the set-up may take: the peer may be preparing its queue pairs.
func (p plan) setupTimeout(step time.Duration) time.Duration {
	return step * time.Duration(1+p.QPs/64)
}

func (p plan) isReliable() bool { return p.QPType == wire.RC }

// mayLose reports whether messages may be lost.
func (p plan) mayLose() bool { return p.QPType != wire.RC }

func (p plan) isLatency() bool { return p.Measure == wire.Latency }

// needsCredit reports whether an initiator needs credit.
func (p plan) needsCredit(iwarp bool) bool {
	switch {
	case p.isLatency():
		return false
	case p.Verb == wire.VerbSend:
		return iwarp
	}
	return p.Validate && (p.Verb == wire.VerbWrite || p.Verb == wire.VerbWriteImmediate)
}

// isChecked reports whether targets check WRITEs when a CHECK comes.
func (p plan) isChecked() bool { return p.Verb == wire.VerbWrite && p.Validate && !p.isLatency() }

// counts reports whether a target sees the messages.
func (p plan) counts() bool {
	return p.Verb != wire.VerbRead && (p.Verb != wire.VerbWrite || p.Validate || p.isLatency())
}

// sendTag and receiveTag return the tags of data of this side and of the peer's.
func (p plan) sendTag(queue int) uint16    { return tagOf(p.Group, queue, p.isServer) }
func (p plan) receiveTag(queue int) uint16 { return tagOf(p.Group, queue, !p.isServer) }

// headroom is how many bytes of a receive come before the data.
func (p plan) headroom() int {
	if p.QPType == wire.UD {
		return transport.GRH
	}
	return 0
}

// stride returns how many bytes there are from one slot of a target to the next.
func (p plan) stride() int {
	if p.Verb == wire.VerbSend {
		return wire.VerbsSlot(int(p.Size) + p.headroom())
	}
	return wire.VerbsSlot(int(p.Size))
}

// slots returns the slots of a queue pair of a target, as a QUEUE tells them.
func (p plan) slots() int {
	switch {
	case p.Verb == wire.VerbSend && p.SRQ:
		return int(p.RxDepth / p.QPs)
	case p.Verb == wire.VerbSend:
		return int(p.RxDepth)
	case p.Verb.IsAtomic(), p.isLatency(), !p.Validate:
		return 1
	}
	return max(1, min(int(p.TxDepth), maxSlots/(int(p.QPs)*p.stride())))
}

// buffers returns how many slots the memory of a target has, of all queue pairs. What is not validated is
// received in one for each.
func (p plan) buffers() int {
	switch {
	case p.Verb != wire.VerbSend:
		return int(p.QPs) * p.slots()
	case !p.Validate && p.SRQ:
		return 1
	case !p.Validate:
		return int(p.QPs)
	case p.SRQ:
		return int(p.RxDepth)
	}
	return int(p.QPs) * int(p.RxDepth)
}

// receiveDepth returns the receives of a queue pair, or of the shared receive queue.
func (p plan) receiveDepth() int {
	switch {
	case p.receives && p.Verb.Receives():
		return int(p.RxDepth)
	case p.receives && p.isChecked():
		return wire.VerbsCheckDepth
	}
	return 0
}

// sources returns the buffers of an initiator for each queue pair.
func (p plan) sources() int {
	switch {
	case p.isLatency():
		return latencySends
	case p.Validate || p.Verb.IsAtomic():
		return int(p.TxDepth)
	}
	return 1
}

// queueConfig returns what the queue pairs are made with.
func (p plan) queueConfig(qkey uint32) transport.QueueConfig {
	c := transport.QueueConfig{
		Service: services[p.QPType], Queues: int(p.QPs), Sends: 1, Receives: max(p.receiveDepth(), 1), QKey: qkey,
		Shared: p.SRQ && p.receives,
	}
	if p.sends {
		c.Sends = int(p.TxDepth) + wire.VerbsCheckDepth
		if p.isLatency() {
			c.Sends = latencySends
		}
		if p.Inline {
			c.Inline = int(p.Size)
		}
	}
	return c
}

var services = map[wire.QPType]transport.Service{wire.RC: transport.RC, wire.UC: transport.UC, wire.UD: transport.UD}

// lacks returns a reject that says what the device cannot do of a test, or nil.
func (p plan) lacks(a transport.Ability) *wire.Reject {
	c := p.queueConfig(0)
	_, entries := c.CompletionQueues()
	reads := math.MaxInt
	if p.sends {
		reads = a.Reads
	}
	if p.receives {
		reads = min(reads, a.ReadResources)
	}
	switch {
	case a.IWARP && p.QPType == wire.UC:
		return wire.RejectNeed(wire.NeedUC, 0)
	case a.IWARP && p.QPType == wire.UD:
		return wire.RejectNeed(wire.NeedUD, 0)
	case p.Verb.IsAtomic() && (a.IWARP || !a.Atomics):
		return wire.RejectNeed(wire.NeedAtomics, 0)
	case a.IWARP && p.Verb == wire.VerbWriteImmediate:
		return wire.RejectNeed(wire.NeedImmediate, 0)
	case p.MTU != 0 && (a.IWARP || int(p.MTU) > a.PortMTU):
		return wire.RejectNeed(wire.NeedMTU, 0)
	case p.SRQ && a.SharedDepth == 0:
		return wire.RejectNeed(wire.NeedSRQ, 0)
	case c.Shared && c.Receives > a.SharedDepth:
		return wire.RejectNeed(wire.NeedSRQWR, a.SharedDepth)
	case max(c.Sends, c.Receives) > a.Depth && !c.Shared, max(c.Sends, wire.VerbsControlDepth(c.Queues)) > a.Depth:
		return wire.RejectNeed(wire.NeedWR, a.Depth)
	case max(entries, 2*wire.VerbsControlDepth(c.Queues)) > a.Completions: // with the SENDs of the control connection
		return wire.RejectNeed(wire.NeedCQE, a.Completions)
	case c.Queues >= a.Queues: // one is the control connection's
		return wire.RejectNeed(wire.NeedQP, a.Queues)
	case p.Verb.Fetches() && int(p.Reads) > reads:
		return wire.RejectNeed(wire.NeedReads, reads)
	}
	return nil
}

// datagramLimit returns the reject for a UD message that is larger than a packet, or nil.
func (p plan) datagramLimit(mtu int) *wire.Reject {
	if p.MTU != 0 {
		mtu = min(mtu, int(p.MTU))
	}
	if p.QPType != wire.UD || int(p.Size) <= mtu {
		return nil
	}
	return &wire.Reject{Version: 1, Reason: wire.RejectTestSize, Value: uint32(mtu), Detail: "a ud message must fit into a packet"}
}
