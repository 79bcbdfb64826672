// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
)

// peerTimeout is how long the peer may take to answer.
const peerTimeout = 3 * time.Second

// peerFindings pings the peer once; if what listens there does not answer pings, it asks
// for a volume, to hear whether it speaks the same version of the protocol.
func peerFindings(ctx context.Context, fs proc.FS, o Options) []Finding {
	once := uint32(1)
	ping := proc.Command{Role: proc.Client, Addr: o.Peer, Port: o.Port, Count: &once, Timeout: peerTimeout, Validate: true}
	_, err := fs.Run(ctx, ping)
	if errors.Is(err, proc.ErrNotLoaded) {
		return []Finding{notPinged(o, "the module sends the pings, and it is not loaded", "load it, as said above, and ask again")}
	}
	if errors.Is(err, unix.ECONNREFUSED) && !nobodyListens(err) {
		if answer := askForVolume(ctx, fs, o); errors.Is(answer, unix.ENOENT) || errors.Is(answer, unix.EPROTONOSUPPORT) {
			err = answer
		}
	}
	return []Finding{peerFinding(o, err)}
}

// askForVolume says hello to a target: ENOENT is the answer of one that speaks our version of
// the protocol, EPROTONOSUPPORT that of one that speaks another.
func askForVolume(ctx context.Context, fs proc.FS, o Options) error {
	_, err := fs.Run(ctx, proc.Command{Role: proc.Client, Addr: o.Peer, Port: o.Port, Block: noVolume, Timeout: peerTimeout})
	if err == nil { // it has a volume of that name, after all
		_, err = fs.Run(ctx, proc.Command{Role: proc.Stop, Block: noVolume})
		return errors.Join(unix.ENOENT, err)
	}
	return err
}

func notPinged(o Options, cause, fix string) Finding {
	return Finding{Check: "peer", Level: Note, Found: fmt.Sprintf("%v was not pinged", o.Peer), Cause: cause, Fix: fix}
}

// noVolume is a name that no target has for a volume.
const noVolume = "krpingctl-doctor"

// nobodyListens says whether the peer's connection manager refused, not a program there.
func nobodyListens(err error) bool {
	return strings.Contains(err.Error(), "invalid service ID")
}

// peerFinding judges how the ping, or the question for a volume, ended.
func peerFinding(o Options, err error) Finding {
	f := Finding{Check: "peer", Level: Problem}
	where := fmt.Sprintf("%v port %d", o.Peer, o.Port)
	switch {
	case err == nil:
		return ok("peer", "%s answered a ping, its data valid", where)
	case errors.Is(err, unix.ENOENT):
		return ok("peer", "%s is a target that speaks this version of the protocol", where)
	case errors.Is(err, unix.EPROTONOSUPPORT):
		f.Found, f.Cause = fmt.Sprintf("%s is a target that speaks another version of the protocol", where), "the hosts run different releases of krping"
		f.Fix = "install the same release on both, and load its module"
	case errors.Is(err, unix.ECONNREFUSED) && nobodyListens(err):
		f.Level, f.Found, f.Cause = Warning, fmt.Sprintf("%v is reachable, but nothing listens on port %d", o.Peer, o.Port), "no server runs there, or on another port"
		f.Fix = fmt.Sprintf("on the peer: krpingctl server --addr %v --port %d; or krping-bridge --ping %v:%d", o.Peer, o.Port, o.Peer, o.Port)
	case errors.Is(err, unix.ECONNREFUSED):
		f.Level, f.Found, f.Cause = Warning, where+" refused the connection", err.Error()
		f.Fix = "on the peer: krpingctl dmesg, or the output of krping-bridge, has the reason"
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		f.Found, f.Cause = where+" is not reachable", err.Error()
		f.Fix = "on the peer: krpingctl doctor --addr " + o.Peer.String()
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENODEV):
		f.Found, f.Cause = fmt.Sprintf("no RDMA device here reaches %v", o.Peer), err.Error()
		f.Fix = "mend what is said above of RDMA devices and routes"
	default:
		f = unchecked("peer", err)
		f.Found = fmt.Sprintf("a ping of %s failed", where)
		if f.Fix == "" {
			f.Level, f.Fix = Problem, "krpingctl dmesg, here and on the peer"
		}
	}
	return f
}
