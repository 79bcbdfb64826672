// SPDX-License-Identifier: Apache-2.0

package roce

import "hash/crc32"

// icrc computes the invariant CRC of a packet (InfiniBand Architecture Specification, annex A17.3.3):
// CRC-32 (IEEE 802.3) over 8 bytes of ones, in place of the local route header that RoCE does not
// have, then the IP header and the UDP header (RoCE v1: the GRH, and udp is empty), and all that follows
// except the CRC itself. Fields that routers may change count as ones: type of service, or traffic class and flow label; time to live or
// hop limit; the checksums; the fifth byte of the BTH. The slices are not modified. ok is false if
// they are too short to be a packet.
func icrc(ip, udp, transport []byte) (sum uint32, ok bool) {
	if len(ip) < 20 || len(ip) > 60 || len(transport) < bthSize+icrcSize {
		return 0, false
	}
	var buf [8 + 60 + 8 + bthSize]byte
	head := append(buf[:0], 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	at := len(head)
	head = append(head, ip...)
	masked := []int{1, 8, 10, 11}
	if ip[0]>>4 == 6 {
		head[at] |= 0x0f
		masked = []int{1, 2, 3, 7}
	}
	for _, i := range masked {
		head[at+i] = 0xff
	}
	at = len(head)
	head = append(head, udp...)
	if len(udp) == udpSize {
		head[at+6], head[at+7] = 0xff, 0xff
	}
	at = len(head)
	head = append(head, transport[:bthSize]...)
	head[at+4] = 0xff
	sum = crc32.ChecksumIEEE(head)
	return crc32.Update(sum, crc32.IEEETable, transport[bthSize:len(transport)-icrcSize]), true
}
