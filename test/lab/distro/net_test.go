// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

func port(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func frame(text string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// receives waits until a port gets a frame, which the other one sends until then: the hub may not know the new port
// yet. Earlier frames may be still on their way.
func receives(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	done := make(chan error)
	go func() {
		for {
			got, err := readFrame(to)
			if err != nil || bytes.Equal(got, frame(text)) {
				done <- err
				return
			}
		}
	}()
	for {
		if _, err := from.Write(frame(text)); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A frame reaches the other host, also after that one was switched off and on.
func TestHub(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "net")
	h, err := newHub(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	a, b := port(t, socket), port(t, socket)
	receives(t, a, b, "one")
	_ = b.Close()
	if _, err := a.Write(frame("lost")); err != nil {
		t.Fatal(err)
	}
	b = port(t, socket)
	receives(t, a, b, "three")
	receives(t, b, a, "four")
}

// A length that no network card sends ends the connection, and takes no memory.
func TestHubRefusesLongFrames(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "net")
	h, err := newHub(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	a := port(t, socket)
	if _, err := a.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v, want EOF", err)
	}
}
