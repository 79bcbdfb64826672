// SPDX-License-Identifier: Apache-2.0

// Package transport defines one RDMA connection as package verbs implements it and packages
// target and pingpong use it.
package transport

import "sync/atomic"

// Remote is memory of the peer that an rkey opens.
type Remote struct {
	Addr uint64
	Rkey uint32
}

// Message is a received message.
type Message struct {
	Data []byte
	// Taken says that an Executor has marked the tags of its commands as in flight.
	Taken bool
	// Release posts the receive again. Data is invalid afterwards.
	Release func() error
}

// Transport is one connection. Its methods may be called concurrently and block until they
// are done. They fail once the connection is closed, which also happens when the peer's device
// stops acknowledging.
type Transport interface {
	// Recv returns the next message.
	Recv() (Message, error)
	// Send sends a copy of msg, by SEND_WITH_INV if the key to invalidate is not 0.
	Send(msg []byte, invalidate uint32) error
	// Read fills p from the peer's memory by RDMA READ. p is from Buffer.
	Read(p []byte, from Remote) error
	// WriteAndSend writes p to the peer's memory by RDMA WRITE and then sends a copy of msg, by
	// SEND_WITH_INV of to's key. It waits for neither. p is from Buffer and is freed.
	WriteAndSend(p []byte, to Remote, msg []byte) error
	// Buffer returns n bytes of registered memory, waiting until they are available.
	Buffer(n int) ([]byte, error)
	// Free returns a buffer; nil is allowed.
	Free(p []byte)
	// Probe returns nil once the peer's device has acknowledged an empty RDMA WRITE, which needs
	// no action of its program.
	Probe() error
	// Ended reports whether the connection has ended or is about to. It returns true before
	// any later connect request is delivered.
	Ended() bool
	// Close moves the queue pair to the error state: the peer's memory is out of reach and
	// every method returns. It may be called more than once.
	Close()
	// Peer returns the peer's address for the log.
	Peer() string
}

// Executor is a Transport that can execute commands of volumes by itself, instead of delivering them.
type Executor interface {
	Transport
	// Prepare binds the goroutine to its thread, which is ready then to execute commands of volumes in files. It may
	// wait for a CPU that goes offline.
	Prepare()
	// Execute begins that, unless it is not possible. Only the goroutine that calls Recv may call it, for a volume in
	// a file after Prepare. Recv delivers messages without the commands that were executed.
	Execute(to Volume)
	// Interrupt makes Recv call Volume.Begin again soon.
	Interrupt()
	// TakeTag marks a tag as in flight, also for those commands that are not delivered. It returns how many are in
	// flight then, and false if this one was already.
	TakeTag(tag uint16) (inFlight int, free bool)
	// FreeTag marks a tag as answered.
	FreeTag(tag uint16)
	// Executed reports whether messages have arrived since the last call.
	Executed() bool
}

// Volume is what an Executor may do with a volume. Sizes are in bytes.
type Volume struct {
	Memory []byte         // the volume's bytes; nil if they are in a file,
	File   uintptr        // of this descriptor
	Size   *atomic.Int64  // of the volume
	Stable *atomic.Uint32 // whether each write is stable when it has ended: 0 or 1
	Counts *Counts        // what was done is added

	Writes    bool  // the client may write, if Stable or
	Writeback bool  // if writes need not be stable without FUA
	Flags     uint8 // that a command may have

	BlockSize, MaxData, MaxInline, MaxMessage uint32
	Depth                                     uint16

	Begin func() bool // called before commands are executed, which must not be if it returns false
	End   func()      // called afterwards
}

// Counts are numbers of commands and bytes. C code adds to them.
type Counts struct {
	Reads, BytesRead, Writes, BytesWritten atomic.Uint64
}
