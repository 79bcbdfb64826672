// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// faultyTransport injects the faults of a connection.
type faultyTransport struct {
	transport.Transport
	faults *Faults
	volume string
}

// Transport returns t with faults injected.
func (f *Faults) Transport(t transport.Transport, volume string) transport.Transport {
	return &faultyTransport{t, f, volume}
}

// Reject returns an error if a client of a volume is to be rejected.
func (f *Faults) Reject(volume string) error {
	if f.happens(Reject, volume) {
		return &wire.Reject{Reason: wire.RejectResources, Detail: injected(Reject).Error()}
	}
	return nil
}

func (t *faultyTransport) happens(p Point) bool { return t.faults.happens(p, t.volume) }

// Recv drops or delays messages, or closes the connection.
func (t *faultyTransport) Recv() (transport.Message, error) {
	for {
		msg, err := t.Transport.Recv()
		if err != nil {
			return msg, err
		}
		if t.happens(Disconnect) {
			t.Close()
		}
		t.faults.delay(RecvDelay, t.volume)
		lost := t.happens(RecvDrop)
		if isKeepAlive(msg.Data) {
			lost = t.happens(KeepAliveLost) || lost
		}
		if !lost {
			return msg, nil
		}
		if err := msg.Release(); err != nil {
			return msg, err
		}
	}
}

// isKeepAlive reports whether a message begins with a KEEP_ALIVE.
func isKeepAlive(msg []byte) bool { return len(msg) > 0 && wire.Op(msg[0]) == wire.OpKeepAlive }

// Send drops or duplicates messages, or fails.
func (t *faultyTransport) Send(msg []byte, invalidate uint32) error {
	switch {
	case t.happens(PostFail):
		return injected(PostFail)
	case t.happens(SendDrop):
		return nil
	case t.happens(SendDuplicate):
		if err := t.Transport.Send(msg, invalidate); err != nil {
			return err
		}
	}
	return t.Transport.Send(msg, invalidate)
}

// Read corrupts data.
func (t *faultyTransport) Read(p []byte, from transport.Remote) error {
	err := t.Transport.Read(p, from)
	t.faults.corrupt(RecvCorrupt, t.volume, p)
	return err
}

// WriteAndSend corrupts data, or fails.
func (t *faultyTransport) WriteAndSend(p []byte, to transport.Remote, msg []byte) error {
	if t.happens(PostFail) {
		return injected(PostFail)
	}
	t.faults.corrupt(SendCorrupt, t.volume, p)
	return t.Transport.WriteAndSend(p, to, msg)
}

// Buffer may fail.
func (t *faultyTransport) Buffer(n int) ([]byte, error) {
	if t.happens(RegRefuse) {
		return nil, injected(RegRefuse)
	}
	return t.Transport.Buffer(n)
}
