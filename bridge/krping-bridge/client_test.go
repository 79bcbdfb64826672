// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"krping/bridge/verbstest"
	"krping/bridge/wire"
)

// The defaults of a test are the module's.
func TestClientHello(t *testing.T) {
	bw := wire.VerbsHello{Size: 64, QPs: 1, QPType: wire.RC, Measure: wire.Bandwidth, TxDepth: 64, Signal: 16}
	lat := wire.VerbsHello{Size: 64, QPs: 1, QPType: wire.RC, Measure: wire.Latency, TxDepth: 1, Signal: 1}
	with := func(h wire.VerbsHello, change func(h *wire.VerbsHello)) wire.VerbsHello {
		change(&h)
		return h
	}
	for args, want := range map[string]wire.VerbsHello{
		"--verb send --bw":      with(bw, func(h *wire.VerbsHello) { h.Verb, h.RxDepth = wire.VerbSend, 128 }),
		"--verb write --bw":     with(bw, func(h *wire.VerbsHello) { h.Verb = wire.VerbWrite }),
		"--verb read --bw":      with(bw, func(h *wire.VerbsHello) { h.Verb, h.Reads = wire.VerbRead, 16 }),
		"--verb cmp_swap --lat": with(lat, func(h *wire.VerbsHello) { h.Verb, h.Reads, h.Size = wire.VerbCompareSwap, 16, 8 }),
		"--verb send --lat":     with(lat, func(h *wire.VerbsHello) { h.Verb, h.RxDepth = wire.VerbSend, 128 }),
		"--verb send --bw --qp ud --qps 500 --srq --txdepth 3 -d 2s -S 1k --inline 2k --validate --duplex --mtu 2048 --rate 7": with(bw, func(h *wire.VerbsHello) {
			h.Verb, h.QPType, h.QPs, h.SRQ, h.RxDepth, h.TxDepth, h.Signal = wire.VerbSend, wire.UD, 500, true, 500, 3, 1
			h.Duration, h.Size, h.Inline, h.Validate, h.Duplex, h.MTU, h.Rate = 2, 1024, true, true, true, 2048, 7
		}),
	} {
		var got wire.VerbsHello
		var err error
		cmd, o := clientCommand()
		cmd.SetArgs(strings.Fields(args))
		if err = cmd.ParseFlags(strings.Fields(args)); err == nil {
			got, err = o.hello(cmd.Flags().Changed)
		}
		got.Group = 0
		if err != nil || got != want || got.Check() != nil {
			t.Errorf("%s: %+v, %v, want\n%+v", args, got, err, want)
		}
	}
}

func TestClientReport(t *testing.T) {
	h := wire.VerbsHello{Size: 1000, QPs: 2, Verb: wire.VerbSend, QPType: wire.UC, Measure: wire.Bandwidth, TxDepth: 8, RxDepth: 16}
	r := verbstest.Result{Test: h, Sent: 250000, Took: 2 * time.Second, Peak: 130000, Arrived: &verbstest.Arrived{Received: 249999, Lost: 1}, Posts: 250001, Completions: 7}
	report := reportOf(r, netip.MustParseAddrPort("10.0.0.1:9999"), errors.New("late"))
	var text bytes.Buffer
	writeReport(&text, report)
	want := `send bw over 2 uc queue pair(s), 1000 bytes: 250,000 messages in 2s
1.000 Gbit/s, 125,000 messages/s, at best 130,000
at the server: 249999 received, 1 lost, 0 repeated, 0 reordered, 0 damaged
`
	if text.String() != want {
		t.Errorf("%s\nwant\n%s", text.String(), want)
	}
	got, err := json.Marshal(report)
	wantJSON := `{"version":1,"verb":"send","qp":"uc","measure":"bw","peer":"10.0.0.1:9999","size":1000,"qps":2,"txdepth":8,"rxdepth":16,"validate":false,"duplex":false,"srq":false,` +
		`"operations":250000,"elapsed_ns":2000000000,"gbit_per_second":1,"ops_per_second":125000,"peak_ops_per_second":130000,"posts":250001,"completions":7,` +
		`"arrived":{"received":249999,"lost":1,"repeated":0,"reordered":0,"damaged":0},"error":"late"}`
	if err != nil || string(got) != wantJSON {
		t.Errorf("%s, %v\nwant\n%s", got, err, wantJSON)
	}
}

// Each reason for which a server refuses is explained.
func TestClientRefusals(t *testing.T) {
	for want, reject := range map[string]*wire.Reject{
		"needs the option verbs":    {Reason: wire.RejectTest},
		"the most is 4096 bytes":    {Reason: wire.RejectTestSize, Value: 4096},
		"its most connections, 256": {Reason: wire.RejectBusy, Value: 256},
		"out of memory":             {Reason: wire.RejectResources},
		"does not allow":            {Reason: wire.RejectNotAllowed},
		"another version":           {Reason: wire.RejectInvalid},
		"the server's RDMA device has at most 3 outstanding reads": {Reason: wire.RejectDevice, Value: 10<<24 | 3},
		"this RDMA device has no atomic operations":                wire.RejectNeed(wire.NeedAtomics, 0),
	} {
		if err := explainClient(reject); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
