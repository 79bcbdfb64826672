// SPDX-License-Identifier: Apache-2.0

package transport

import "time"

// Service is the transport service of a queue pair.
type Service uint8

// Services: reliable connected, unreliable connected, unreliable datagram.
const (
	RC Service = iota
	UC
	UD
)

func (s Service) String() string { return [...]string{"rc", "uc", "ud"}[s] }

// GRH is how many bytes stand before the data of a message that a UD queue pair receives.
const GRH = 40

// Opcode is the operation of a work request or of a completion, as libibverbs numbers it.
type Opcode uint32

// Opcodes of work requests.
const (
	OpWrite          Opcode = 0
	OpWriteImmediate Opcode = 1
	OpSend           Opcode = 2
	OpSendImmediate  Opcode = 3
	OpRead           Opcode = 4
	OpCompareSwap    Opcode = 5
	OpFetchAdd       Opcode = 6
)

// Opcodes of the completions of receives. What others have is of no use.
const (
	DoneReceive          Opcode = 128 // of a SEND
	DoneReceiveImmediate Opcode = 129 // of an RDMA WRITE
)

// WorkFlags are flags of a send work request, as libibverbs numbers them.
type WorkFlags uint32

// Flags of work requests.
const (
	Fence     WorkFlags = 1 // after the READs and atomics before it
	Signalled WorkFlags = 2 // it has a completion
	Inline    WorkFlags = 8 // the data is copied when it is posted
)

// Work is a send work request with one segment of local memory.
type Work struct {
	ID         uint64 // returned in its completion
	Addr       uint64 // of local memory
	RemoteAddr uint64
	CompareAdd uint64 // of an atomic
	Swap       uint64
	Queue      uint32 // index of the queue pair
	Op         Opcode
	Flags      WorkFlags
	Length     uint32 // bytes
	Lkey       uint32
	Rkey       uint32
	Immediate  uint32
	_          uint32
}

// Receive is a receive work request with one segment of local memory.
type Receive struct {
	ID     uint64
	Addr   uint64
	Queue  uint32 // not used with a shared receive queue
	Length uint32 // bytes
	Lkey   uint32
	_      uint32
}

// Completion is that of a work request. If it failed, only ID, Status and QPN are valid.
type Completion struct {
	ID        uint64
	Status    uint32 // 0: success
	Op        Opcode
	Length    uint32 // bytes received, with the GRH of UD
	Immediate uint32 // 0 if there is none
	QPN       uint32 // number of the queue pair
	SourceQPN uint32 // UD: that of the sender's
}

// Access is what registered memory is used for, beside local reads and writes.
type Access uint8

// Uses of memory.
const (
	PeerWrites Access = 1 << iota
	PeerReads
	PeerAtomics
	ReadSink // RDMA READs put data there
)

// Memory is registered memory.
type Memory struct {
	Data []byte
	Addr uint64
	Lkey uint32
	Rkey uint32
}

// Ability is what a device can do.
type Ability struct {
	IWARP         bool
	PortMTU       int // of the port, in bytes
	Depth         int // most work requests of a queue
	Completions   int // most entries of a completion queue
	SharedDepth   int // most receives of a shared receive queue; 0: there are none
	Reads         int // most RDMA READs and atomics that a queue pair may have outstanding
	ReadResources int // most that it answers at a time
	Queues        int // most queue pairs
	Atomics       bool
}

// QueueConfig says what queue pairs to make.
type QueueConfig struct {
	Service  Service
	Queues   int
	Sends    int  // most send work requests of a queue pair in flight
	Receives int  // most receives of a queue pair, or of the shared receive queue
	Shared   bool // one receive queue for all
	Inline   int  // most bytes of a message that is sent inline
	QKey     uint32
}

// MostCompletionQueues is how many completion queues there are at most. Each has room for what all of its
// queue pairs can post: if a queue pair fails, all of that completes.
const MostCompletionQueues = 32

// usualEntries is how many entries a completion queue has at most if more queues help.
const usualEntries = 16384

// CompletionQueues returns how many completion queues the queue pairs have, and entries of each. All receives
// of a shared receive queue may complete in each of them.
func (c QueueConfig) CompletionQueues() (queues, entries int) {
	own, shared := c.Sends+c.Receives, 0
	if c.Shared {
		own, shared = c.Sends, c.Receives
	}
	queues = min((c.Queues*own+usualEntries-1)/usualEntries, MostCompletionQueues, c.Queues)
	return queues, (c.Queues+queues-1)/queues*own + shared
}

// QueueAddress is what the peer needs to know of a UC or UD queue pair.
type QueueAddress struct {
	QPN  uint32
	PSN  uint32 // of the first packet from there
	QKey uint32 // UD
}

// TurnSize is the most work requests, receives and completions of one Turn.
const TurnSize = 64

// Arrival is how a message of the peer, or the answer to one's own, is seen.
type Arrival uint32

// Arrivals.
const (
	Received Arrival = iota // a receive completes
	Written                 // the last byte of the memory changes
	Fetched                 // one's own READ or atomic operation completes
)

// ExchangeSize is the most messages of one Exchange.
const ExchangeSize = 4096

// Exchange describes messages of a latency test on queue pair 0, from Number on, before End. A client sends a
// message and waits for the answer. A server waits for a message and answers it.
type Exchange struct {
	Work      Work    // of message Number; ID, Immediate, and those of CompareSwap count up with it
	Receive   Receive // is posted after each receive, with the ID of that one
	Number    uint64
	End       uint64
	TxLast    uint64        // address of the last byte of what is sent, which gets the number; 0: none
	RxLast    uint64        // of the last byte of what arrives, which must have it; 0: none
	Limit     time.Duration // no message is begun after this time
	Arrival   Arrival
	Op        Opcode // of the completion of a receive,
	Length    uint32 // its bytes,
	SourceQPN uint32 // and UD: its sender
	Signal    uint32 // one message in so many is signalled
	Quiet     uint32 // messages since the last signalled one
	Server    uint32 // 1, or 0: client
	Busy      uint32 // 1: poll, 0: sleep

	// What has happened.
	Exchanged  uint32 // messages that were sent and have arrived; Number is behind them
	IsPending  uint32 // client, 1: message Number was sent, but no answer has arrived
	Polled     uint32 // completions, without those that are returned
	_          uint32
	PendingFor time.Duration
	Took       [ExchangeSize]time.Duration // client
}

// Queues are the data queue pairs of a test, which have one completion queue. Only one goroutine at a
// time may use them, but for Wake.
type Queues interface {
	// Register returns n bytes of zeros. They are freed with the queue pairs.
	Register(n int, use Access) (Memory, error)
	// Address returns where a queue pair can be reached.
	Address(index int) QueueAddress
	// Connect lets a UC or UD queue pair receive from and send to the peer's. mtu is in bytes, 0 for
	// that of the path.
	Connect(index int, peer QueueAddress, mtu int) error
	// Batch returns the memory for the work requests and receives of the next Turn, TurnSize each.
	Batch() ([]Work, []Receive)
	// Turn posts the first receives and works of Batch and returns completions. If there are none, it
	// waits for some: asleep, or with busy by polling. After wait it returns none. The completions are
	// valid until the next call. An error is final.
	Turn(works, receives int, wait time.Duration, busy bool) ([]Completion, error)
	// Exchange runs messages of a latency test as long as what completes is what the test expects, and
	// returns the completions from the first other one on, or none: after Limit, after some time without a
	// message, after Wake. It may do nothing. An error is final.
	Exchange(e *Exchange) ([]Completion, error)
	// Wake makes a Turn that waits return, or the next one that would wait. Any goroutine may call it.
	Wake()
	// Watch polls until a byte of registered memory differs from old, and returns it. It returns false
	// after wait.
	Watch(b *byte, old byte, wait time.Duration) (now byte, changed bool)
	// StatusText explains the status of a completion.
	StatusText(status uint32) string
	// Close frees everything. No other call is running.
	Close()
}

// Incoming is a connect request of a client for an RC data queue pair.
type Incoming interface {
	// AcceptQueue accepts it as the queue pair of an index, or rejects it and returns an error.
	AcceptQueue(q Queues, index int) error
	// Reject rejects it with private data.
	Reject(private []byte)
}
