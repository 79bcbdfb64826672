// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestReadsFiles(t *testing.T) {
	fs, err := NewFS("testdata")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := fs.Threads()
	if err != nil {
		t.Fatal(err)
	}
	want := []Thread{{Number: 1}, {2, "rxe0", 16, 1, 32, 2, 64, 3, 128, 4}}
	if !reflect.DeepEqual(threads, want) {
		t.Errorf("threads %+v, want %+v", threads, want)
	}
	s, err := fs.Session("vol1")
	if err != nil {
		t.Fatal(err)
	}
	if s.Device() != "/dev/krping1" || s.Peer != "[fd77::1]:9999" || s.Size != 1<<30 || !s.Writeback || s.Other["new_key"] != "7" || s.Timeout != 600 {
		t.Errorf("session %+v", s)
	}
	if s.UUID != "5f6a7c1e-6d0c-4d6e-9a53-4f1c7b0f3a11" || s.Version != 2 || !s.Volatile || !s.Shared || s.Writer != "" {
		t.Errorf("identity of session %+v", s)
	}
	if old, err := fs.Session("vol0"); err != nil || old.UUID != "" || old.Version != 0 || old.Volatile || old.Shared || old.Writer != "" {
		t.Errorf("session of an older module: %+v, %v", old, err)
	}
	tap, err := fs.Session("vol2")
	wantTap := Tap{Forwarded: 340, ForwardedBytes: 1392640, Skipped: 12, Dropped: 5, DroppedBytes: 20480, DropsLost: 3, DropsFull: 2, Mismatches: 1, Unchecked: 4, Queued: 6}
	if err != nil || tap.Tap == nil || *tap.Tap != wantTap || tap.Backing != "/dev/vdb" || tap.DirtyBytes != 131072 || len(tap.Other) > 0 {
		t.Errorf("session of mode=tap: %+v, %+v, %v", tap, tap.Tap, err)
	}
	tap, err = fs.Session("vol3")
	if err != nil || tap.Tap == nil || *tap.Tap != (Tap{Dropped: 1, DroppedBytes: 65536, DropsLost: 1}) || tap.Backing != "ram:33554432" || tap.DirtyBytes != 65536 {
		t.Errorf("session of mode=tap on memory: %+v, %+v, %v", tap, tap.Tap, err)
	}
	served, err := fs.Target("vol4")
	if err != nil || served.Connections != 3 || served.Violations != 1 || served.Rejected != 2 || served.UUID != "7d3c0d52-0a6e-4c3b-8f0e-2a7b1c9d4e66" || served.Writer != "192.168.77.2" || len(served.Other) > 0 {
		t.Errorf("served volume: %+v, %v", served, err)
	}
	if _, err := fs.Session("vol4"); !errors.Is(err, ErrNoSession) {
		t.Errorf("session of a volume that is served only: %v, want ErrNoSession", err)
	}
	if _, err := fs.Session("vol9"); !errors.Is(err, ErrNoSession) {
		t.Errorf("unknown session: %v, want ErrNoSession", err)
	}
}

func TestModuleNotLoaded(t *testing.T) {
	fs, err := NewFS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Threads(); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("threads: %v, want ErrNotLoaded", err)
	}
	if _, err := fs.Run(t.Context(), Command{Role: Stop, Block: "vol0"}); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("run: %v, want ErrNotLoaded", err)
	}
	if _, err := NewFS(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("mount that does not exist: %v", err)
	}
}

func TestMalformedText(t *testing.T) {
	for _, text := range []string{
		"1", "1-rxe0 1 2 3", "x-rxe0 1 2 3 4 5 6 7 8", "1- 1 2 3 4 5 6 7 8", "1-rxe0 1 2 3 4 5 6 7 -8",
		"1-rxe0 1 2 3 4 5 6 7 8 9", "1 listening", "1-rxe0 1 2 3 4 5 6 7 18446744073709551616",
	} {
		if _, err := ParseThreads(text + "\n"); err == nil {
			t.Errorf("threads %q: accepted", text)
		}
	}
	for _, text := range []string{
		"name", "id=x name=a", "id=1", "name=a size=-1", "name=a writeback=perhaps", "name=a size=",
	} {
		if _, err := ParseSessions(text + "\n"); err == nil {
			t.Errorf("session %q: accepted", text)
		}
	}
	for _, text := range []string{"", "6,1", "6,1,2", "x,1,2,-;krping: [module] a", "6,x,2,-;krping: [module] a", "6,1,2,-;other: text"} {
		if _, err := ParseKmsg(text); err == nil {
			t.Errorf("kmsg %q: accepted", text)
		}
	}
}

func TestParseKmsg(t *testing.T) {
	for text, want := range map[string]Message{
		"6,12,3456789,-;krping: [client:42@192.168.77.1:9999] 5 pings\n SUBSYSTEM=x": {12, 3456789 * time.Microsecond, 6, "client", 42, "192.168.77.1:9999", "5 pings"},
		"3,1,2,-;krping: [control:7] unknown option 'x'":                             {1, 2000, 3, "control", 7, "", "unknown option 'x'"},
		"4,1,2,c;krping: [vol-0.a_b@[fd77::1]:9999] lost":                            {1, 2000, 4, "vol-0.a_b", 0, "[fd77::1]:9999", "lost"},
		"3,1,2,-;krping: [target@[fd77::1]:9999] the device":                         {1, 2000, 3, "target", 0, "[fd77::1]:9999", "the device"},
		"14,1,2,-;krping: [module] loaded":                                           {1, 2000, 6, "module", 0, "", "loaded"},
	} {
		if got, err := ParseKmsg(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestCommands(t *testing.T) {
	addr, count := netip.MustParseAddr("192.168.77.1"), uint32(0)
	for want, c := range map[string]Command{
		"client,addr=192.168.77.1":                                      {Role: Client, Addr: addr},
		"client,addr=192.168.77.1,port=1,count=0,size=5":                {Role: Client, Addr: addr, Port: 1, Count: &count, Size: 5},
		"server,addr6=fe80::1%eth0,validate":                            {Role: Server, Addr: netip.MustParseAddr("fe80::1%eth0"), Validate: true},
		"client,addr=192.168.77.1,block=v,queues=2,depth=3":             {Role: Client, Addr: addr, Block: "v", Queues: 2, Depth: 3},
		"client,addr=192.168.77.1,block=pool/image,source=192.168.77.3": {Role: Client, Addr: addr, Block: "pool/image", Source: "192.168.77.3"},
		"stop,block=v,force":                                            {Role: Stop, Block: "v", Force: true},
	} {
		if got := c.String(); got != want {
			t.Errorf("%+v: %s, want %s", c, got, want)
		}
	}
	for _, c := range []Command{
		{}, {Role: Client}, {Role: Stop}, {Role: Stop, Block: "v", Addr: addr}, {Role: Client, Addr: addr, Block: "a b"},
		{Role: Client, Addr: addr, Block: strings.Repeat("a", 64)}, {Role: Server, Addr: addr, Block: "v"},
		{Role: Client, Addr: addr, Block: "v", Count: &count}, {Role: Client, Addr: addr, Test: "ping-pong"},
		{Role: Client, Addr: addr, Queues: 1}, {Role: Client, Addr: addr, Force: true}, {Role: Client, Addr: addr, Size: 1<<30 + 1},
		{Role: Client, Addr: addr, Block: "v", Queues: 65}, {Role: Client, Addr: addr, Block: "v", Depth: 1025},
		{Role: Client, Addr: addr, Timeout: 1500 * time.Millisecond}, {Role: Client, Addr: addr, Timeout: 86401 * time.Second},
	} {
		if err := c.Check(); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
}

func TestTypeOfServiceOfSession(t *testing.T) {
	for text, want := range map[string]*uint8{"-": nil, "0": new(uint8(0)), "104": new(uint8(104))} {
		sessions, err := ParseSessions("id=1 name=vol0 role=client tos=" + text + "\n")
		if err != nil || len(sessions) != 1 || !reflect.DeepEqual(sessions[0].TOS, want) {
			t.Errorf("tos=%s: %+v, %v", text, sessions, err)
		}
	}
	if _, err := ParseSessions("id=1 name=vol0 role=client tos=256\n"); err == nil {
		t.Error("tos=256 is accepted")
	}
}
