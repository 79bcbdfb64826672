// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"reflect"
	"strings"
	"testing"
)

// Every key of a verbs result has a field, and no two the same.
func TestParseVerbsResult(t *testing.T) {
	line := "id=7 pid=1 role=client test=verbs state=done error=0 peer=192.168.77.1:9999 ibdev=rxe0 size=64 count=100 qps=2 txdepth=64 poll=0 duplex=0" +
		" ops=200 ns=1000 timed=0 min_ns=0 max_ns=0 sum_ns=0 hist= start_ns=5" +
		" verb=write_imm qp=uc sent=201 received=202 lost=203 repeated=204 reordered=205 damaged=206 peak_ops=207 posts=208 completions=209\n"
	results, err := ParseResults(line)
	if err != nil || len(results) != 1 {
		t.Fatalf("%v, %v", results, err)
	}
	got := results[0]
	want := Result{
		ID: 7, PID: 1, Role: Client, Test: Verbs, State: "done", Peer: "192.168.77.1:9999", Device: "rxe0", Size: 64, Count: 100, QPs: 2, TxDepth: 64, Ops: 200, Start: 5, Elapsed: 1000,
		Verb: WriteImm, QPType: "uc", Sent: 201, Received: 202, Lost: 203, Repeated: 204, Reordered: 205, Damaged: 206, PeakOps: 207, Posts: 208, Completions: 209,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What is refused says what would be right.
func TestVerbsRefusals(t *testing.T) {
	refusals := map[string]string{
		"verb=send,bw,qp=ud,size=2000,mtu=1024": "at most mtu, which is 1024",
		"verb=read,bw,qp=uc":                    "verb=read does not go with qp=uc: it needs qp=rc",
		"verb=write,bw,qp=ud":                   "verb=write does not go with qp=ud: it needs qp=rc or uc",
		"verb=send,lat,qps=2":                   "qps does not go with lat",
		"verb=write,bw,srq":                     "srq does not go with verb=write",
		"verb=fetch_add,bw,size=8":              "size does not go with verb=fetch_add",
		"verb=send,bw,qps=9,srq,rxdepth=8":      "rxdepth=8: with srq it must be at least qps, which is 9",
		"verb=send,bw,count=1,duration=1":       "count does not go with duration",
		"verb=send,bw,inline=63":                "inline=63: must be at least size, which is 64",
		"verb=send,bw,txdepth=4,signal=5":       "signal=5: must be at most txdepth, which is 4",
		"verb=send,bw,mtu=1500":                 "must be 256, 512, 1024, 2048 or 4096",
		"verb=send":                             "exactly one of bw and lat",
		"verb=send,bw,lat":                      "exactly one of bw and lat",
		"lat":                                   "lat needs verb=NAME",
		"verb=sent,bw":                          "must be send, write, write_imm, read, fetch_add or cmp_swap",
		"verb=send,bw,qp=xrc":                   "must be rc, uc or ud",
		"verb=send,bw,verb=send":                "verb is given twice",
		"verb=send,bw,mem_mode=reg":             "mem_mode does not go with verb",
		"verbs":                                 "verbs does not go with a ping client",
	}
	var commands []string
	for command := range refusals {
		commands = append(commands, base+command)
	}
	for i, answer := range lineAnswers(t, commands) {
		if want := refusals[strings.TrimPrefix(commands[i], base)]; accepted(answer) || !strings.Contains(answer, want) {
			t.Errorf("%s: %s, want %s", commands[i], answer, want)
		}
	}
}
