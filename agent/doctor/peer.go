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

// peerFindings pings the peer once. If the server there refuses pings, it asks for a volume to
// learn whether that is a target, and of which protocol version.
func peerFindings(ctx context.Context, fs proc.FS, o Options) []Finding {
	once := uint32(1)
	ping := proc.Command{Role: proc.Client, Addr: o.Peer, Port: o.Port, Count: &once, Timeout: peerTimeout, Validate: true}
	_, err := fs.Run(ctx, ping)
	if errors.Is(err, proc.ErrNotLoaded) {
		return []Finding{notPinged(o, "the module sends the pings, and it is not loaded", "load it as described above, then run doctor again")}
	}
	if errors.Is(err, unix.ECONNREFUSED) && !nobodyListens(err) {
		if answer := askForVolume(ctx, fs, o); errors.Is(answer, unix.ENOENT) || errors.Is(answer, unix.EPROTONOSUPPORT) {
			err = answer
		}
	}
	return []Finding{peerFinding(o, err)}
}

// askForVolume asks a target for a volume it does not have: ENOENT if the target has our protocol
// version, EPROTONOSUPPORT if it has another.
func askForVolume(ctx context.Context, fs proc.FS, o Options) error {
	_, err := fs.Run(ctx, proc.Command{Role: proc.Client, Addr: o.Peer, Port: o.Port, Block: noVolume, Timeout: peerTimeout})
	if err == nil { // the volume does exist
		_, err = fs.Run(ctx, proc.Command{Role: proc.Stop, Block: noVolume})
		return errors.Join(unix.ENOENT, err)
	}
	return err
}

func notPinged(o Options, cause, fix string) Finding {
	return Finding{Check: "peer", Level: Note, Found: fmt.Sprintf("%v was not pinged", o.Peer), Cause: cause, Fix: fix}
}

// noVolume is a volume name that targets do not have.
const noVolume = "krpingctl-doctor"

// nobodyListens reports whether the peer's connection manager refused, not a server.
func nobodyListens(err error) bool {
	return strings.Contains(err.Error(), "invalid service ID")
}

// peerFinding explains the result of the ping, or of asking for a volume.
func peerFinding(o Options, err error) Finding {
	f := Finding{Check: "peer", Level: Problem}
	where := fmt.Sprintf("%v port %d", o.Peer, o.Port)
	switch {
	case err == nil:
		return ok("peer", "%s answered a ping with valid data", where)
	case errors.Is(err, unix.ENOENT):
		return ok("peer", "%s is a target that speaks this version of the protocol", where)
	case errors.Is(err, unix.EPROTONOSUPPORT):
		f.Found, f.Cause = fmt.Sprintf("%s is a target that speaks another version of the protocol", where), "the hosts run different releases of krping"
		f.Fix = "install the same release on both hosts, and reload its module"
	case errors.Is(err, unix.ECONNREFUSED) && nobodyListens(err):
		f.Level, f.Found, f.Cause = Warning, fmt.Sprintf("%v is reachable, but nothing listens on port %d", o.Peer, o.Port), "no server is running, or it uses another port"
		f.Fix = fmt.Sprintf("on the peer: krpingctl server --addr %v --port %d; or krping-bridge --ping %v:%d", o.Peer, o.Port, o.Peer, o.Port)
	case errors.Is(err, unix.ECONNREFUSED):
		f.Level, f.Found, f.Cause = Warning, where+" refused the connection", err.Error()
		f.Fix = "see the reason on the peer, in krpingctl dmesg or in the output of krping-bridge"
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		f.Found, f.Cause = where+" is not reachable", err.Error()
		f.Fix = "on the peer: krpingctl doctor --addr " + o.Peer.String()
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENODEV):
		f.Found, f.Cause = fmt.Sprintf("no RDMA device of this host reaches %v", o.Peer), err.Error()
		f.Fix = "fix RDMA devices and routes as described above"
	default:
		f = unchecked("peer", err)
		f.Found = fmt.Sprintf("a ping to %s failed", where)
		if f.Fix == "" {
			f.Level, f.Fix = Problem, "krpingctl dmesg, on this host and on the peer"
		}
	}
	return f
}
