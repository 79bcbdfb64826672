// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// An MPA request or reply (RFC 5044, section 7.1; RFC 6581, section 9.1).
const (
	mpaKey      = "MPA ID Req Frame"
	mpaEnhanced = 0x10 // flag: the private data begins with IRD and ORD
	mpaRejected = 0x20 // flag
	mpaRevision = 2
	peerToPeer  = 0x8000 // bit of IRD: the client sends the first frame, "ready to receive"
	sendRTR     = 0x4000 // bit of IRD: that frame is a SEND of no bytes
)

// silent connects to an iWARP target and announces a first frame that it never sends. siw waits for that frame,
// without a limit, when the target closes the connection.
func silent(t *testing.T, port int, private []byte) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(guest.Addr(t), strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	request := append([]byte(mpaKey), mpaEnhanced, mpaRevision)
	request = binary.BigEndian.AppendUint16(request, uint16(4+len(private)))
	request = binary.BigEndian.AppendUint16(request, peerToPeer|sendRTR|1)
	request = binary.BigEndian.AppendUint16(request, 1)
	if _, err := conn.Write(append(request, private...)); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 20)
	_ = conn.SetReadDeadline(time.Now().Add(guest.Slow(10 * time.Second)))
	if _, err := io.ReadFull(conn, reply); err != nil {
		t.Fatalf("read the MPA reply: %v", err)
	}
	if !bytes.HasPrefix(reply, []byte("MPA ID Rep Frame")) || reply[16]&mpaRejected != 0 {
		t.Fatalf("MPA reply %x", reply)
	}
	return conn
}

// A client that is silent before its connection is complete, and which siw cannot get rid of, keeps no other
// client from the volume.
func TestSilentClientOverIWARP(t *testing.T) {
	needs.Test(t, needs.IWARP)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served := target.ServeNew(t, 8<<20, targets.Config{})
		peer := silent(t, served.Port, fakeclient.Hello(1).Append(nil))
		for _, session := range []byte{2, 1} {
			start := time.Now()
			c := fakeclient.Connect(t, served.Port, fakeclient.Hello(session))
			c.WantServed()
			if took := time.Since(start); took > guest.Slow(3*time.Second) {
				late.Errorf(t, "session %d was served after %v", session, took)
			}
			c.Close()
		}
		_ = peer.Close()
		served.Stop()
	})
}
