// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package verbs tests the test of every verb inside one VM, the module against itself: each verb, queue pair type and
// measure, with and without validation, and what is refused.
package verbs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// outcome is what both sides of a test have measured, and how their commands ended.
type outcome struct {
	client, server       proc.Result
	clientErr, serverErr error
}

// measure runs a client's options against a server with those of its own.
func measure(t *testing.T, options, server string) outcome {
	t.Helper()
	port := guest.NextPort()
	at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), port)
	done := guest.StartServer(t, "server,verbs,"+at+server)
	var o outcome
	o.clientErr = guest.Command("client,"+at+options, guest.Limit)
	o.serverErr = <-done
	o.client, o.server = results(t, port)
	return o
}

// results returns those of the client and the server on a port.
func results(t *testing.T, port int) (client, server proc.Result) {
	t.Helper()
	fs, err := proc.NewFS(proc.DefaultMount)
	if err != nil {
		t.Fatal(err)
	}
	all, err := fs.Results()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if !strings.HasSuffix(r.Peer, fmt.Sprintf(":%d", port)) {
			continue
		}
		if r.Role == proc.Client {
			client = r
		} else {
			server = r
		}
	}
	return client, server
}

// kind is a verb on a type of queue pair.
type kind struct{ verb, qp string }

func (k kind) options() string { return fmt.Sprintf("verb=%s,qp=%s,", k.verb, k.qp) }

// reliable says whether nothing may be lost.
func (k kind) reliable() bool { return k.qp == "rc" }

var kinds = []kind{
	{proc.Send, "rc"}, {proc.Write, "rc"}, {proc.WriteImm, "rc"}, {proc.Read, "rc"}, {proc.FetchAdd, "rc"}, {proc.CmpSwap, "rc"},
	{proc.Send, "uc"}, {proc.Write, "uc"}, {proc.WriteImm, "uc"}, {proc.Send, "ud"},
}

// possible says whether the device can do it.
func (k kind) possible(t *testing.T) bool {
	return !guest.IWARP(t) || k.reliable() && (k.verb == proc.Send || k.verb == proc.Write || k.verb == proc.Read)
}

// seen says whether the server sees what arrives.
func (k kind) seen(measure string, validate bool) bool {
	return k.verb != proc.Read && (k.verb != proc.Write || validate || measure == "lat")
}

// check compares the counts of both sides of a test in which the client alone has sent n messages, or with lat the server
// has answered.
func (o outcome) check(t *testing.T, k kind, measure string, validate bool, n uint64) {
	t.Helper()
	if o.clientErr != nil || o.serverErr != nil {
		t.Fatalf("client: %v, server: %v", o.clientErr, o.serverErr)
	}
	c, s := o.client, o.server
	if c.Test != proc.Verbs || c.Verb != k.verb || c.QPType != k.qp || s.Verb != k.verb || s.QPType != k.qp || s.Size != c.Size || s.Count != c.Count {
		t.Errorf("the results are of other tests: client %+v, server %+v", c, s)
	}
	if c.Sent != n {
		t.Errorf("the client has sent %d messages, want %d", c.Sent, n)
	}
	if measure == "bw" && c.Ops != n {
		t.Errorf("the client has counted %d operations, want %d", c.Ops, n)
	}
	if c.Damaged != 0 || s.Damaged != 0 {
		t.Errorf("damaged: %d, %d", c.Damaged, s.Damaged)
	}
	if k.reliable() && (c.Lost != 0 || s.Lost != 0 || c.Repeated != 0 || c.Reordered != 0) {
		t.Errorf("on a reliable connection: client %+v, server %+v", c, s)
	}
	if k.seen(measure, validate) && measure == "bw" && s.Received+s.Lost != n {
		t.Errorf("the server has received %d and lost %d messages of %d", s.Received, s.Lost, n)
	}
	if k.verb == proc.Read && c.Received != n {
		t.Errorf("the client has read %d messages, want %d", c.Received, n)
	}
	if c.Posts < n || c.Completions == 0 {
		t.Errorf("%d work requests posted, %d completions for %d messages", c.Posts, c.Completions, n)
	}
}

// Each verb on each type of queue pair, with each measure.
func TestKinds(t *testing.T) {
	guest.CheckResources(t)
	for _, k := range kinds {
		for _, measured := range []string{"bw", "lat"} {
			for _, validate := range []bool{false, true} {
				name := fmt.Sprintf("%s/%s/%s/validate=%v", k.verb, k.qp, measured, validate)
				t.Run(name, func(t *testing.T) {
					options := k.options() + measured + ",count=300"
					if validate {
						options += ",validate"
					}
					if !k.possible(t) {
						refused(t, options, unix.EOPNOTSUPP)
						return
					}
					o := measure(t, options, "")
					o.check(t, k, measured, validate, 300)
					if measured == "lat" && o.client.Timed+o.client.Lost < 300 {
						t.Errorf("%d of 300 operations were timed, %d lost", o.client.Timed, o.client.Lost)
					}
				})
			}
		}
	}
}

// refused runs a client that must fail before it connects: nobody listens.
func refused(t *testing.T, options string, want error) {
	t.Helper()
	err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,%s", guest.Addr(t), guest.NextPort(), options), guest.Limit)
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", options, err, want)
	}
}

// Sizes at which words, slots, packets and pages begin and end, each message checked.
func TestSizes(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	largest := guest.RegionPages(t) * 4096
	sizes := []int{1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 1024, 1025, 4096, 65537, largest/2 + 1, largest}
	if testing.Short() {
		sizes = []int{1, 3, 5, 8, 65, 1000, 1025, 65537, largest}
	}
	for _, k := range kinds {
		if !k.possible(t) || k.verb == proc.FetchAdd || k.verb == proc.CmpSwap {
			continue
		}
		for _, size := range sizes {
			if !k.reliable() && size < 4 || k.qp == "ud" && size > 1024 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/%d", k.verb, k.qp, size), func(t *testing.T) {
				count := 40
				if size > 1<<20 {
					count = 5
				}
				options := fmt.Sprintf("%sbw,validate,count=%d,size=%d", k.options(), count, size)
				if k.verb == proc.Send || k.verb == proc.WriteImm {
					options += ",rxdepth=8"
				}
				measure(t, options, fmt.Sprintf("size=%d", size)).check(t, k, "bw", true, uint64(count))
			})
		}
	}
}

// Options that change how messages are posted and received do not change what arrives.
func TestOptions(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	for i, k := range kinds {
		if !k.possible(t) {
			continue
		}
		receives := k.verb == proc.Send || k.verb == proc.WriteImm
		reads := k.verb == proc.Read || k.verb == proc.FetchAdd || k.verb == proc.CmpSwap
		for j, options := range []string{
			"qps=7", "qps=40,txdepth=2", "txdepth=1", "txdepth=3,signal=2", "txdepth=100,signal=100", "poll", "inline=64", "reads=1", "mtu=256",
			"qps=5,srq", "srq,rxdepth=1", "rxdepth=1", "rxdepth=1000",
		} {
			srq := strings.Contains(options, "srq") || strings.Contains(options, "rxdepth")
			if srq && !receives || strings.HasPrefix(options, "inline") && reads || strings.HasPrefix(options, "reads") && !reads || strings.HasPrefix(options, "mtu") && guest.IWARP(t) {
				continue // the parser refuses them: package proc tests that
			}
			for _, validate := range []bool{false, true} {
				if testing.Short() && validate == ((i+j)%2 == 0) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s/validate=%v", k.verb, k.qp, options, validate), func(t *testing.T) {
					queues, command := uint64(1), k.options()+"bw,count=100,"+options
					if rest, ok := strings.CutPrefix(options, "qps="); ok {
						if _, err := fmt.Sscan(strings.Split(rest, ",")[0], &queues); err != nil {
							t.Fatal(err)
						}
					}
					if validate {
						command += ",validate"
					}
					measure(t, command, "poll").check(t, k, "bw", validate, 100*queues)
				})
			}
		}
	}
}

// A message takes one work request, and no more completions than it must: of a latency test one in eight beside those of
// the answers, as each is a wake-up. A server on UC signals each answer: the one in eight could be that of a lost message,
// and a send queue is freed by completions.
func TestWorkPerMessage(t *testing.T) {
	needs.Test(t, needs.RoCE) // iWARP needs credit
	const n, control = 1600, 40
	for options, completions := range map[string]uint64{
		"verb=send,bw,txdepth=64,signal=16":          n / 16,
		"verb=write,bw,txdepth=64,signal=64":         n / 64,
		"verb=read,bw,txdepth=64,signal=64,reads=16": n / 64,
		"verb=send,qp=ud,bw,txdepth=64,signal=1":     n,
		"verb=send,lat":                              n + n/8,
		"verb=write_imm,qp=uc,lat":                   n + n/8,
		"verb=write,lat":                             n / 8,
		"verb=fetch_add,lat":                         n,
	} {
		t.Run(options, func(t *testing.T) {
			o := measure(t, fmt.Sprintf("%s,count=%d", options, n), "")
			if o.clientErr != nil || o.serverErr != nil {
				t.Fatalf("client: %v, server: %v", o.clientErr, o.serverErr)
			}
			if c := o.client; c.Posts < n || c.Posts > n+control || c.Completions > completions+control {
				t.Errorf("%d work requests and %d completions, want at most %d and %d", c.Posts, c.Completions, n+control, completions+control)
			}
			if s := o.server; strings.HasSuffix(options, "qp=uc,lat") && s.Completions < 2*s.Received {
				t.Errorf("the server has %d completions for %d messages and their answers", s.Completions, s.Received)
			}
		})
	}
}

// Both sides send.
func TestDuplex(t *testing.T) {
	guest.CheckResources(t)
	for _, k := range kinds {
		if !k.possible(t) {
			continue
		}
		for _, options := range []string{"", ",validate", ",qps=3,validate", ",qps=16"} {
			t.Run(k.verb+"/"+k.qp+options, func(t *testing.T) {
				o := measure(t, k.options()+"bw,duplex,count=200"+options, "")
				if o.clientErr != nil || o.serverErr != nil {
					t.Fatalf("client: %v, server: %v", o.clientErr, o.serverErr)
				}
				n := uint64(200) * uint64(o.client.QPs)
				if o.client.Sent != n || o.server.Sent != n || !o.server.Duplex {
					t.Errorf("sent: %d and %d, want %d", o.client.Sent, o.server.Sent, n)
				}
				if o.client.Lost != o.server.Lost || k.reliable() && o.client.Lost != 0 {
					t.Errorf("lost in both directions: the client says %d, the server %d", o.client.Lost, o.server.Lost)
				}
			})
		}
	}
}

// Receives run dry: a reliable sender is held back, others lose messages and say so.
func TestFewReceives(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	for _, k := range kinds {
		if !k.possible(t) || k.verb != proc.Send && k.verb != proc.WriteImm {
			continue
		}
		for _, options := range []string{"qps=4,srq,rxdepth=4", "rxdepth=1"} {
			t.Run(k.verb+"/"+k.qp+"/"+options, func(t *testing.T) {
				before := rnrErrors(t)
				o := measure(t, k.options()+"bw,validate,count=300,size=1000,"+options, "size=1000")
				o.check(t, k, "bw", true, 300*uint64(o.client.QPs))
				const control = 16 // messages of the control connection, which is reliable, that may wait for its receives
				if n := rnrErrors(t) - before; !guest.IWARP(t) && (k.reliable() && n == 0 || !k.reliable() && n > control) {
					t.Errorf("the device has refused %d messages for lack of a receive", n)
				}
			})
		}
	}
}

// rnrErrors returns how often the device has asked a sender to wait for a receive.
func rnrErrors(t *testing.T) int {
	t.Helper()
	if guest.IWARP(t) {
		return 0
	}
	return guest.Number(t, "/sys/class/infiniband/rxe0/ports/1/hw_counters/send_rnr_err")
}

// As many queue pairs as a test may have.
func TestManyQueuePairs(t *testing.T) {
	guest.CheckResources(t)
	for _, k := range []kind{{proc.Send, "rc"}, {proc.Write, "uc"}} {
		if !k.possible(t) {
			continue
		}
		t.Run(k.verb+"/"+k.qp, func(t *testing.T) {
			o := measure(t, k.options()+"bw,validate,qps=1024,txdepth=2,count=2,timeout=60", "timeout=60")
			o.check(t, k, "bw", true, 2048)
		})
	}
}

// All tests together get a quarter of the memory: one that would need too much beside another is refused, and then served.
func TestMemoryOfAllTests(t *testing.T) {
	needs.Test(t, needs.Once, needs.RoCE) // the VM for siw has so much memory that filling it takes the debug kernel minutes
	guest.CheckResources(t)
	const size = 65536
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	most := info.Totalram * uint64(info.Unit) / 4
	options := fmt.Sprintf("verb=send,bw,validate,txdepth=1,size=%d,rxdepth=%d", size, most*6/10/size)
	at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), guest.NextPort())
	served := guest.StartServer(t, "server,verbs,"+at)
	ended := make(chan error, 1)
	go func() { ended <- guest.Command("client,"+at+options, guest.Slow(15*time.Second)) }()
	guest.Eventually(t, 20*time.Second, "the first test runs", func() bool {
		return slices.ContainsFunc(guest.Threads(t), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) > 4 && fields[4] != "0" // messages received
		})
	})
	guest.Run(t, "dmesg", "-C")
	o := measure(t, options+",count=5", "")
	if !errors.Is(o.clientErr, unix.ECONNREFUSED) || !errors.Is(o.serverErr, unix.EPROTO) {
		late.ErrorfIf(t, len(ended) > 0, "beside it, client: %v, server: %v; want ECONNREFUSED and EPROTO", o.clientErr, o.serverErr)
	}
	if len(ended) > 0 {
		late.Errorf(t, "the first test has ended before the second one began")
		return
	}
	if log := guest.Run(t, "dmesg"); !strings.Contains(log, "bytes of memory, other tests have") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	if client, server := <-ended, <-served; !errors.Is(client, unix.EINTR) || server != nil {
		t.Errorf("the first test: client: %v, server: %v", client, server)
	}
	if o := measure(t, options+",count=5", ""); o.clientErr != nil || o.serverErr != nil {
		t.Errorf("after it, client: %v, server: %v", o.clientErr, o.serverErr)
	}
}

// With validate a memory region bounds the messages in flight, and the result says how many there are. Soft-RoCE's and
// siw's have 2 MiB and 1 MiB.
func TestDepthOfValidatedTests(t *testing.T) {
	needs.Test(t, needs.Once, needs.RoCE)
	guest.CheckResources(t)
	for options, depth := range map[string]uint32{
		"verb=write,bw,validate,size=1024":            64,
		"verb=write,bw,validate,size=65536":           32,
		"verb=write,bw,validate,size=1048576":         2,
		"verb=send,bw,validate,size=65536,rxdepth=16": 32,
		"verb=read,bw,validate,size=524288":           3,
		"verb=write,bw,size=1048576":                  64,
	} {
		o := measure(t, options+",count=10", "")
		if o.clientErr != nil || o.serverErr != nil || o.client.TxDepth != depth {
			t.Errorf("%s: client: %v, server: %v, txdepth %d, want %d", options, o.clientErr, o.serverErr, o.client.TxDepth, depth)
		}
	}
}

// A test with a duration ends by itself, and not before. A rate is never exceeded.
func TestDurationAndRate(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	for _, k := range kinds {
		if !k.possible(t) {
			continue
		}
		t.Run(k.verb+"/"+k.qp, func(t *testing.T) {
			o := measure(t, k.options()+"bw,validate,duration=1,rate=500", "")
			if o.clientErr != nil || o.serverErr != nil {
				t.Fatalf("client: %v, server: %v", o.clientErr, o.serverErr)
			}
			if most := 2 + uint64(o.client.Elapsed.Seconds()*500); o.client.Ops > most || o.client.Ops == 0 {
				t.Errorf("%d messages in %v, want 1 to %d", o.client.Ops, o.client.Elapsed, most)
			}
			if o.client.Elapsed > 30*time.Second {
				t.Errorf("a test of 1 s took %v", o.client.Elapsed)
			}
			if rate := float64(o.client.Ops) / o.client.Elapsed.Seconds(); float64(o.client.PeakOps) < 0.9*rate {
				t.Errorf("a peak of %d messages a second, at %.0f on average", o.client.PeakOps, rate)
			}
			if o.client.Count != 0 || o.client.Sent != o.client.Ops {
				t.Errorf("sent %d, counted %d", o.client.Sent, o.client.Ops)
			}
		})
	}
}

// What a side cannot do is refused by name, before anything is set up.
func TestRefusals(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	for _, tc := range []struct {
		options, server string
		client, serves  error
		log             string
	}{
		{"verb=send,bw,count=1,size=4097", "size=4096", unix.ECONNREFUSED, unix.EPROTO, "size is too large; the server's limit is 4096"},
		{"verb=write,bw,count=1,size=1073741824", "", unix.EINVAL, nil, "must be at most"},
		{"verb=send,bw,count=1,inline=4096,size=4096", "", unix.EINVAL, nil, "inline data of 4096 bytes"},
		{"bw,count=1", "", unix.ECONNREFUSED, unix.EPROTO, "the server runs another test"},
		{"count=1", "", unix.ECONNREFUSED, unix.EPROTO, "the server runs another test"},
	} {
		t.Run(tc.options, func(t *testing.T) { refusedByOne(t, tc.options, tc.server, tc.client, tc.serves, tc.log) })
	}
	t.Run("path", func(t *testing.T) {
		needs.Test(t, needs.RoCE)
		for _, options := range []string{"verb=send,bw,qp=ud,count=1,size=8193", "verb=send,bw,qp=ud,count=1,size=4097"} {
			refused(t, options, unix.EINVAL)
		}
	})
	// A server of another test.
	port := guest.NextPort()
	at := fmt.Sprintf("addr=%s,port=%d", guest.Addr(t), port)
	done := guest.StartServer(t, "server,bw,"+at)
	if err := guest.Command("client,verb=send,bw,count=1,"+at, guest.Limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a client of a server of another test: %v, want ECONNREFUSED", err)
	}
	if err := <-done; !errors.Is(err, unix.EPROTO) {
		t.Errorf("its server: %v, want EPROTO", err)
	}
}

// refusedByOne runs a test that one side refuses. If the client does, the server is stopped by a valid client.
func refusedByOne(t *testing.T, options, server string, wantClient, wantServer error, log string) {
	t.Helper()
	at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), guest.NextPort())
	guest.Run(t, "dmesg", "-C")
	done := guest.StartServer(t, "server,verbs,"+at+server)
	if err := guest.Command("client,"+at+options, guest.Limit); !errors.Is(err, wantClient) {
		t.Errorf("client: %v, want %v", err, wantClient)
	}
	if wantServer == nil {
		if err := guest.Command("client,"+at+"verb=send,bw,count=1", guest.Limit); err != nil {
			t.Errorf("a valid client after it: %v", err)
		}
	}
	if err := <-done; !errors.Is(err, wantServer) {
		t.Errorf("server: %v, want %v", err, wantServer)
	}
	if got := guest.Run(t, "dmesg"); !strings.Contains(got, log) {
		t.Errorf("the log has no %q:\n%s", log, got)
	}
}

// A client that a user stops ends an endless test in good order; otherwise its server has lost it.
func TestStoppedClient(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.CheckResources(t)
	for i, k := range kinds {
		if !k.possible(t) {
			continue
		}
		all := []string{"", ",count=4294967295", ",validate"}
		if testing.Short() {
			all = all[i%len(all):][:1]
		}
		for _, options := range all {
			t.Run(k.verb+"/"+k.qp+options, func(t *testing.T) {
				port := guest.NextPort()
				at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), port)
				done := guest.StartServer(t, "server,verbs,"+at)
				if err := guest.Command("client,"+at+k.options()+"bw"+options, 3*time.Second); !errors.Is(err, unix.EINTR) {
					t.Errorf("client: %v, want EINTR", err)
				}
				if client, _ := results(t, port); client.Sent == 0 {
					late.Errorf(t, "the client was stopped before it had sent anything")
				}
				var want error
				if strings.Contains(options, "count") {
					want = unix.ECONNRESET
				}
				if err := <-done; !errors.Is(err, want) {
					t.Errorf("server: %v, want %v", err, want)
				}
			})
		}
	}
}
