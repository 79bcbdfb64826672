// SPDX-License-Identifier: Apache-2.0

// Package transport has the types of one RDMA connection: what package verbs implements, and
// what packages target and pingpong need of it.
package transport

// Remote is memory of the peer that an rkey opens.
type Remote struct {
	Addr uint64
	Rkey uint32
}

// Message is a received message.
type Message struct {
	Data []byte
	// Release posts the receive again; Data is not valid afterwards.
	Release func() error
}

// Transport is one connected queue. Calls may run concurrently, block until they are
// done, and fail once the connection is closed, which it is too when the client's device
// acknowledges nothing any more.
type Transport interface {
	// Recv returns the next message.
	Recv() (Message, error)
	// Send sends a copy of msg; with a key other than 0 by SEND_WITH_INV of it.
	Send(msg []byte, invalidate uint32) error
	// Read moves len(p) bytes from the client's memory by RDMA READ; p is of Buffer.
	Read(p []byte, from Remote) error
	// SendBehind moves p into the client's memory by RDMA WRITE and sends a copy of msg behind
	// it, by SEND_WITH_INV of to's key, without waiting for either; p is of Buffer, and freed.
	SendBehind(p []byte, to Remote, msg []byte) error
	// Buffer returns registered memory of n bytes, waiting until there is some.
	Buffer(n int) ([]byte, error)
	// Free gives a buffer back; nil is none.
	Free(p []byte)
	// Probe returns nil once the client's device has answered, which it does without the
	// client's doing.
	Probe() error
	// Ended says whether the connection has ended or is about to: it is true before a request
	// to connect is seen that came later.
	Ended() bool
	// Close moves the queue pair to the error state: the client can't be reached any
	// more and every call above returns. It may be called twice.
	Close()
	// Peer names the client for the log.
	Peer() string
}
