// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"krping/bridge/uuid"
)

// Sizes in bytes of a welcome in each version of the protocol.
const (
	WelcomeSize1 = 40
	WelcomeSize  = 88
)

// Flags of a Welcome.
const (
	VolumeReadOnly  = 0x01
	VolumeWriteback = 0x02
	VolumeVolatile  = 0x04
)

// Capabilities of a Welcome.
const (
	CapDiscard    = 0x01 // DISCARD is supported
	CapShared     = 0x02 // several sessions may write
	CapTornBlocks = 0x04 // a power loss may leave a block half written
)

// Welcome is what a target grants: the private data of its accept. Sizes are in bytes. Version 1 has
// nothing after MaxMessage.
type Welcome struct {
	Version    uint8 // of the protocol: the client's; Append takes 0 for Version
	Flags      uint8
	Depth      uint16
	Capacity   uint64
	Epoch      uint64
	BlockSize  uint32
	MaxData    uint32
	MaxInline  uint32
	MaxMessage uint32

	UUID   uuid.UUID // of the volume
	Writer uint32    // number of this session among the writers of the epoch, from 1; 0 if it is none
	Caps   uint32
	Slots  Slots
}

// Slots are memory of the target that a client may write to. This package's target has none.
type Slots struct {
	Addr  uint64
	Rkey  uint32
	Size  uint32 // bytes of each
	Count uint16
}

// welcomeSize returns the size of a welcome in bytes.
func welcomeSize(version uint8) int {
	if orCurrent(version) == 1 {
		return WelcomeSize1
	}
	return WelcomeSize
}

// Append adds the welcome to b: 88 bytes, or 40 of version 1.
func (w Welcome) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Magic)
	b = append(b, orCurrent(w.Version), w.Flags)
	b = binary.BigEndian.AppendUint16(b, w.Depth)
	b = binary.BigEndian.AppendUint64(b, w.Capacity)
	b = binary.BigEndian.AppendUint64(b, w.Epoch)
	b = binary.BigEndian.AppendUint32(b, w.BlockSize)
	b = binary.BigEndian.AppendUint32(b, w.MaxData)
	b = binary.BigEndian.AppendUint32(b, w.MaxInline)
	b = binary.BigEndian.AppendUint32(b, w.MaxMessage)
	if w.Version == 1 {
		return b
	}
	b = append(b, w.UUID[:]...)
	b = binary.BigEndian.AppendUint32(b, w.Writer)
	b = binary.BigEndian.AppendUint32(b, w.Caps)
	b = binary.BigEndian.AppendUint64(b, w.Slots.Addr)
	b = binary.BigEndian.AppendUint32(b, w.Slots.Rkey)
	b = binary.BigEndian.AppendUint32(b, w.Slots.Size)
	b = binary.BigEndian.AppendUint16(b, w.Slots.Count)
	return append(b, make([]byte, 6)...)
}

// DecodeWelcome decodes the private data of an accept.
func DecodeWelcome(b []byte) (Welcome, error) {
	if len(b) < WelcomeSize1 {
		return Welcome{}, fmt.Errorf("welcome of %d bytes, want %d or more", len(b), WelcomeSize1)
	}
	version := b[4]
	if magic := binary.BigEndian.Uint32(b); magic != Magic || !speaks(version) {
		return Welcome{}, fmt.Errorf("welcome with magic %#x and version %d, want %#x and %d or 1", magic, version, uint32(Magic), Version)
	}
	if len(b) < welcomeSize(version) {
		return Welcome{}, fmt.Errorf("welcome of %d bytes, want %d in version %d", len(b), welcomeSize(version), version)
	}
	w := Welcome{
		Version:    version,
		Flags:      b[5],
		Depth:      binary.BigEndian.Uint16(b[6:]),
		Capacity:   binary.BigEndian.Uint64(b[8:]),
		Epoch:      binary.BigEndian.Uint64(b[16:]),
		BlockSize:  binary.BigEndian.Uint32(b[24:]),
		MaxData:    binary.BigEndian.Uint32(b[28:]),
		MaxInline:  binary.BigEndian.Uint32(b[32:]),
		MaxMessage: binary.BigEndian.Uint32(b[36:]),
	}
	if version == 1 {
		return w, nil
	}
	if w.UUID = uuid.UUID(b[40:]); w.UUID.IsZero() {
		return Welcome{}, errors.New("welcome without a UUID")
	}
	if !bytes.Equal(b[82:WelcomeSize], make([]byte, WelcomeSize-82)) {
		return Welcome{}, fmt.Errorf("welcome with reserved bytes %x, want zero", b[82:WelcomeSize])
	}
	w.Writer = binary.BigEndian.Uint32(b[56:])
	w.Caps = binary.BigEndian.Uint32(b[60:])
	w.Slots = Slots{
		Addr:  binary.BigEndian.Uint64(b[64:]),
		Rkey:  binary.BigEndian.Uint32(b[72:]),
		Size:  binary.BigEndian.Uint32(b[76:]),
		Count: binary.BigEndian.Uint16(b[80:]),
	}
	return w, nil
}
