// SPDX-License-Identifier: Apache-2.0

package wire

import "testing"

// BenchmarkDecodeRequests decodes and checks a message of three WRITEs of 4 KiB.
func BenchmarkDecodeRequests(b *testing.B) {
	var message []byte
	for tag := range uint16(3) {
		data := make([]byte, 4096)
		message = Request{Command: Command{Op: OpWrite, Flags: FlagInline, Tag: tag, Length: 4096, CRC: CRC32C(data)}, Data: data}.Append(message)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRequests(message, limits); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendResponse encodes the response to a READ of 4 KiB.
func BenchmarkAppendResponse(b *testing.B) {
	response, data := Response{Tag: 1, Flags: ResponseInline, Length: 4096}, make([]byte, 4096)
	var message []byte
	b.ReportAllocs()
	b.SetBytes(4096)
	for b.Loop() {
		message = response.Append(message[:0], data)
	}
}

func BenchmarkCRC32C(b *testing.B) {
	data := make([]byte, 4096)
	b.SetBytes(4096)
	for b.Loop() {
		CRC32C(data)
	}
}
