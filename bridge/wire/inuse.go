// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"

	"krping/bridge/uuid"
)

// InUseSize is the size in bytes of an InUse in version 2.
const InUseSize = RejectSize + 32

// InUse is the private data of a reject with RejectInUse: another session is the volume's writer. In
// version 1 it is a reject without more.
type InUse struct {
	Version uint8 // of the protocol: the client's; Append takes 0 for Version
	Holder  netip.Addr
	UUID    uuid.UUID // of the volume
	Detail  string    // for the server's log; not sent
}

func (u *InUse) reject() *Reject {
	return &Reject{Version: u.Version, Reason: RejectInUse, Detail: u.Detail}
}

func (u *InUse) Error() string { return u.reject().Error() }

// Append adds the 44 bytes of version 2 to b, or the 12 of version 1.
func (u *InUse) Append(b []byte) []byte {
	b = u.reject().Append(b)
	if u.Version == 1 {
		return b
	}
	holder := u.Holder.As16()
	b = append(b, holder[:]...)
	return append(b, u.UUID[:]...)
}

// DecodeInUse decodes the private data of a reject of version 2.
func DecodeInUse(b []byte) (*InUse, error) {
	r, err := DecodeReject(b)
	if err != nil {
		return nil, err
	}
	if r.Reason != RejectInUse || r.Version < 2 || len(b) < InUseSize {
		return nil, fmt.Errorf("the reject of %d bytes does not name a writer", len(b))
	}
	return &InUse{
		Version: r.Version,
		Holder:  netip.AddrFrom16([16]byte(b[RejectSize:])).Unmap(),
		UUID:    uuid.UUID(b[RejectSize+16:]),
	}, nil
}
