// SPDX-License-Identifier: Apache-2.0

// Package transport defines one RDMA connection as package verbs implements it and packages
// target and pingpong use it.
package transport

// Remote is memory of the peer that an rkey opens.
type Remote struct {
	Addr uint64
	Rkey uint32
}

// Message is a received message.
type Message struct {
	Data []byte
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
