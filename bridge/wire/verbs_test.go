// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"
)

// The messages of testdata/emit.c.
var (
	verbsHello = VerbsHello{
		Size: 4000, QPs: 0x0102, Group: 0x0304, Verb: VerbSend, QPType: RC, Measure: Bandwidth, Duplex: true, Validate: true, SRQ: true, Inline: true,
		Connection: 0x0102, MTU: 1024, Count: 0x11121314, Rate: 0x21222324, TxDepth: 0x0132, RxDepth: 0x0234, Signal: 0x0122,
	}
	atomicsHello = VerbsHello{Size: 8, QPs: 1, Verb: VerbCompareSwap, QPType: RC, Measure: Latency, Duration: 0x00013234, TxDepth: 1, Signal: 1, Reads: 16}
	queueMessage = VerbsMessage{Type: VerbsQueue, Queue: 0x0102, Info: VerbsInfo{
		QPN: 0x010203, PSN: 0x040506, QKey: 0x11121314, Slots: 0x21222324, Addr: 0x3132333435363738, Rkey: 0x41424344,
	}}
	creditMessage = VerbsMessage{Type: VerbsCredit, Queue: 0x0102, Number: 0x5152535455565758}
	reportMessage = VerbsMessage{Type: VerbsReport, Queue: 0x0102, Report: VerbsReportBody{
		Received: 0x0102030405060708, Lost: 2, Repeated: 3, Reordered: 4, Damaged: 5, Number: 0x1112131415161718, Offset: 0x21222324, Damage: Torn,
	}}
)

// The bytes of version 1. They never change.
const (
	goldenVerbsHello = "4b5250540105000000000fa0010203040101010701020400111213140000000021222324013202340122" + "0fa000000000"
	goldenReport     = "06000102000000000102030405060708000000000000000200000000000000030000000000000004" + "0000000000000005" + "1112131415161718" + "2122232404000000"
)

func TestVerbsGolden(t *testing.T) {
	for want, got := range map[string][]byte{goldenVerbsHello: verbsHello.Append(nil), goldenReport: reportMessage.Append(nil)} {
		if hex.EncodeToString(got) != want {
			t.Errorf("%x, want\n%s", got, want)
		}
	}
}

func TestVerbsEncodingMatchesC(t *testing.T) {
	c := emitted(t)
	limits := []byte{}
	for _, v := range []int{VerbsQPsMax, VerbsDepthMax, VerbsSlotsMax, VerbsCheckDepth, VerbsControlDepth(1024), VerbsSlot(65), VerbsBatch(33), VerbsQuietMS<<16 | VerbsStallMS} {
		limits = binary.BigEndian.AppendUint32(limits, uint32(v))
	}
	for name, got := range map[string][]byte{
		"verbs": verbsHello.Append(nil), "atomics": atomicsHello.Append(nil), "queue": queueMessage.Append(nil), "credit": creditMessage.Append(nil),
		"report": reportMessage.Append(nil), "device": RejectNeed(NeedReads, 16).Append(nil), "limits": limits,
	} {
		if !bytes.Equal(got, c[name]) {
			t.Errorf("%s:\n%x, C has\n%x", name, got, c[name])
		}
	}
	for name, want := range map[string]VerbsHello{"verbs": verbsHello, "atomics": atomicsHello} {
		if got, err := DecodeVerbsHello(append(c[name], make([]byte, 8)...)); err != nil || got != want || !IsVerbsHello(c[name]) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, want := range map[string]VerbsMessage{"queue": queueMessage, "credit": creditMessage, "report": reportMessage} {
		if got, err := DecodeVerbsMessage(c[name]); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A hello of which one field is wrong is refused as invalid, and the reason names the field.
func TestDecodeVerbsHelloErrors(t *testing.T) {
	bw := VerbsHello{Size: 4096, QPs: 2, Verb: VerbSend, QPType: RC, Measure: Bandwidth, TxDepth: 8, RxDepth: 8, Signal: 4}
	if err := bw.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(h *VerbsHello){
		"verb 0":                    func(h *VerbsHello) { h.Verb = 0 },
		"verb 7":                    func(h *VerbsHello) { h.Verb = 7 },
		"type 0":                    func(h *VerbsHello) { h.QPType = 0 },
		"type 4":                    func(h *VerbsHello) { h.QPType = 4 },
		"measure 0":                 func(h *VerbsHello) { h.Measure = 0 },
		"measure 3":                 func(h *VerbsHello) { h.Measure = 3 },
		"read over uc":              func(h *VerbsHello) { h.Verb, h.QPType, h.RxDepth, h.Reads = VerbRead, UC, 0, 1 },
		"write over ud":             func(h *VerbsHello) { h.Verb, h.QPType, h.RxDepth = VerbWrite, UD, 0 },
		"lat with 2 queue pairs":    func(h *VerbsHello) { h.Measure, h.TxDepth, h.Signal = Latency, 1, 1 },
		"lat with duplex":           func(h *VerbsHello) { h.Measure, h.QPs, h.TxDepth, h.Signal, h.Duplex = Latency, 1, 1, 1, true },
		"lat with depth 2":          func(h *VerbsHello) { h.Measure, h.QPs, h.TxDepth, h.Signal = Latency, 1, 2, 1 },
		"lat with a rate":           func(h *VerbsHello) { h.Measure, h.QPs, h.TxDepth, h.Signal, h.Rate = Latency, 1, 1, 1, 1 },
		"lat with srq":              func(h *VerbsHello) { h.Measure, h.QPs, h.TxDepth, h.Signal, h.SRQ = Latency, 1, 1, 1, true },
		"size of 1 GiB and 1":       func(h *VerbsHello) { h.Size = 1<<30 + 1 },
		"validated uc of 3 bytes":   func(h *VerbsHello) { h.Verb, h.QPType, h.RxDepth, h.Size, h.Validate = VerbWrite, UC, 0, 3, true },
		"srq of writes":             func(h *VerbsHello) { h.Verb, h.RxDepth, h.SRQ = VerbWrite, 0, true },
		"srq less than queue pairs": func(h *VerbsHello) { h.SRQ, h.RxDepth = true, 1 },
		"no queue pair":             func(h *VerbsHello) { h.QPs = 0 },
		"1025 queue pairs":          func(h *VerbsHello) { h.QPs = 1025 },
		"connection 3 of 2":         func(h *VerbsHello) { h.Connection = 3 },
		"connection of uc":          func(h *VerbsHello) { h.QPType, h.Connection = UC, 1 },
		"count and duration":        func(h *VerbsHello) { h.Count, h.Duration = 1, 1 },
		"size 0":                    func(h *VerbsHello) { h.Size = 0 },
		"validated ud of 3 bytes":   func(h *VerbsHello) { h.QPType, h.Size, h.Validate = UD, 3, true },
		"atomic of 16 bytes":        func(h *VerbsHello) { h.Verb, h.Size, h.RxDepth, h.Reads = VerbFetchAdd, 16, 0, 1 },
		"mtu 1500":                  func(h *VerbsHello) { h.MTU = 1500 },
		"inline read":               func(h *VerbsHello) { h.Verb, h.RxDepth, h.Reads, h.Inline = VerbRead, 0, 1, true },
		"inline of 64 KiB":          func(h *VerbsHello) { h.Inline, h.Size = true, 65536 },
		"txdepth 0":                 func(h *VerbsHello) { h.TxDepth = 0 },
		"txdepth 16385":             func(h *VerbsHello) { h.TxDepth = 16385 },
		"rxdepth 0":                 func(h *VerbsHello) { h.RxDepth = 0 },
		"rxdepth of a write":        func(h *VerbsHello) { h.Verb = VerbWrite },
		"signal 0":                  func(h *VerbsHello) { h.Signal = 0 },
		"signal 9 of 8":             func(h *VerbsHello) { h.Signal = 9 },
		"reads of a send":           func(h *VerbsHello) { h.Reads = 1 },
		"reads 0 of a read":         func(h *VerbsHello) { h.Verb, h.RxDepth = VerbRead, 0 },
	} {
		h := bw
		change(&h)
		var reject *Reject
		if err := h.Check(); !errors.As(err, &reject) || reject.Reason != RejectInvalid || reject.Detail == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := bw.Append(nil)
	for name, b := range map[string][]byte{
		"short":         good[:VerbsHelloSize-1],
		"verb 0":        changed(good, 16, 0),
		"another test":  TestHello{Test: TestPing, Size: 1, QPs: 1}.Append(nil),
		"server_inv":    changed(good, 6, 1),
		"reserved":      changed(good, 47, 1),
		"unknown flag":  changed(good, 19, 8),
		"inline length": changed(good, 43, 1),
	} {
		if _, err := DecodeVerbsHello(b); !errors.As(err, new(*Reject)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func changed(b []byte, at int, value byte) []byte {
	b = bytes.Clone(b)
	b[at] = value
	return b
}

func TestDecodeVerbsMessageErrors(t *testing.T) {
	queue, report := queueMessage.Append(nil), reportMessage.Append(nil)
	intact := VerbsMessage{Type: VerbsReport, Report: VerbsReportBody{Received: 7}}.Append(nil)
	if _, err := DecodeVerbsMessage(intact); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "63 bytes": queue[:63], "65 bytes": append(bytes.Clone(queue), 0),
		"type 0": changed(queue, 0, 0), "type 8": changed(queue, 0, 8), "reserved": changed(queue, 1, 1), "second reserved": changed(queue, 7, 1),
		"queue 1024": changed(queue, 2, 4), "number of 25 bits": changed(queue, 8, 1), "PSN of 25 bits": changed(queue, 12, 1), "queue key of 32 bits": changed(queue, 16, 0x80),
		"unused bytes": changed(queue, 63, 1), "bytes after a number": changed(creditMessage.Append(nil), 16, 1),
		"GO with a number": changed(VerbsMessage{Type: VerbsGo}.Append(nil), 15, 1), "GO of a queue": changed(VerbsMessage{Type: VerbsGo}.Append(nil), 3, 1),
		"ERROR 0": VerbsMessage{Type: VerbsError}.Append(nil), "ERROR 6": VerbsMessage{Type: VerbsError, Number: 6}.Append(nil),
		"damage 6": changed(report, 60, 6), "damaged, but intact": changed(report, 60, 0), "damage of no message": changed(intact, 60, 1),
		"first damage without damage": changed(intact, 55, 1), "queue without damage": changed(intact, 3, 1), "unused bytes of a report": changed(report, 63, 1),
	} {
		if m, err := DecodeVerbsMessage(b); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestRejectNeed(t *testing.T) {
	for want, r := range map[string]*Reject{
		"has no uc queue pairs":                              RejectNeed(NeedUC, 0),
		"has at most 16 outstanding reads and atomics":       RejectNeed(NeedReads, 16),
		"has at most 16777215 entries in a completion queue": RejectNeed(NeedCQE, 1<<30),
		"has at most 0 work requests in a queue":             RejectNeed(NeedWR, -1),
	} {
		again, err := DecodeReject(r.Append(nil))
		if err != nil || again.Reason != RejectDevice || again.Lacks() != want {
			t.Errorf("%+v, %v: %s, want %s", again, err, again.Lacks(), want)
		}
	}
}

func FuzzDecodeVerbsHello(f *testing.F) {
	f.Add(verbsHello.Append(nil))
	f.Add(atomicsHello.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := DecodeVerbsHello(data)
		if err != nil {
			if !errors.As(err, new(*Reject)) {
				t.Errorf("error %v is no reject", err)
			}
			return
		}
		if again := h.Append(nil); !bytes.Equal(again, data[:VerbsHelloSize]) || h.Check() != nil {
			t.Errorf("%x became %+v", data, h)
		}
	})
}

func FuzzDecodeVerbsMessage(f *testing.F) {
	for _, m := range []VerbsMessage{queueMessage, creditMessage, reportMessage, {Type: VerbsGo}, {Type: VerbsDone, Number: 1}, {Type: VerbsError, Number: 5}} {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := DecodeVerbsMessage(data); err == nil && !bytes.Equal(m.Append(nil), data) {
			t.Errorf("%x became %+v", data, m)
		}
	})
}
