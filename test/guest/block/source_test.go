// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// wantSource runs the command of a client. Its server allows only the second address, so it is refused without source=
// and accepted with it. The RDMA device knows a new address a moment later.
func wantSource(t *testing.T, command, source string) {
	t.Helper()
	if err := guest.Command(command, guest.Limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s: %v, want ECONNREFUSED", command, err)
	}
	var err error
	guest.Eventually(t, 20*time.Second, "the address can be used", func() bool {
		err = guest.Command(command+",source="+source, guest.Limit)
		return !errors.Is(err, unix.EADDRNOTAVAIL)
	})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// A session connects from the address that it was told to, also after a loss.
func TestSource(t *testing.T) {
	needs.Test(t, needs.Once)
	const second = "192.168.77.200"
	guest.AddAddress(t, second+"/24")
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served := target.ServeNew(t, 8*mib, targets.Config{Allow: second})
		command := fmt.Sprintf("client,addr=%s,port=%d,block=vol0,queues=2", guest.Addr(t), served.Port)
		wantSource(t, command, second)
		defer krpingctl(t, "stop", "vol0", "--force")
		dev := "/dev/" + guest.Session(t, "vol0")["dev"]
		krpingctl(t, "write", dev, "--size", "1MiB", "--direct")
		served.Stop()
		served = served.Again(t)
		krpingctl(t, "verify", dev)
		session := guest.Session(t, "vol0")
		guest.WantFields(t, session, "state", "live", "source", second)
		if session["reconnects"] == "0" { // there may be more than one on a slow machine
			t.Error("the session has not reconnected")
		}
		served.WantVolume(t, "writer", second)
		if stat := guest.MustKrpingctl(t, "stat"); !strings.Contains(stat, " from "+second) {
			t.Errorf("krpingctl stat has no source:\n%s", stat)
		}
	})
}

// A link-local source has its interface; a ping has a source, too.
func TestSourceOfPing(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	const second = "fe80::77"
	first := guest.LinkLocal(t)
	guest.AddAddress(t, second+"/64", "nodad")
	for test, options := range map[string]string{"ping": "validate", "bandwidth": "bw"} {
		t.Run(test, func(t *testing.T) {
			peer := fmt.Sprintf("addr6=%s%%eth0,port=%d,%s", first, guest.NextPort(), options)
			server := guest.StartServer(t, "server,allow="+second+","+peer)
			wantSource(t, "client,count=10,"+peer, second+"%eth0")
			if err := guest.Within(t, 20*time.Second, "the server ends", server); err != nil {
				t.Error(err)
			}
		})
	}
}

// An address that this host does not have fails the command before anything is made.
func TestSourceThatIsNotHere(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	served := targets.Module.ServeNew(t, 8*mib, targets.Config{})
	at := fmt.Sprintf("client,addr=%s,port=%d,source=", guest.Addr(t), served.Port)
	for source, want := range map[string]error{
		"192.168.77.201": unix.EADDRNOTAVAIL, "fd77::1": unix.EINVAL, "eth0": unix.EINVAL,
	} {
		for _, more := range []string{"", ",block=vol0"} {
			if err := guest.Command(at+source+more, guest.Limit); !errors.Is(err, want) {
				t.Errorf("source=%s%s: %v, want %v", source, more, err, want)
			}
		}
	}
	r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(served.Port), "--block", "vol0", "--source", "192.168.77.201")
	if r.Code == 0 || !strings.Contains(r.Stderr, "no network interface of this host has this address; there are") || !strings.Contains(r.Stderr, guest.Addr(t)+" (eth0)") {
		t.Errorf("krpingctl: %+v", r)
	}
	if guest.Session(t, "vol0") != nil {
		t.Error("a session is left")
	}
	served.WantVolume(t, "connections", "0", "rejected", "0")
}
