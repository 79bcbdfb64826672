// SPDX-License-Identifier: Apache-2.0

//go:build faults

package main

import (
	"errors"
	"os"

	"krping/bridge/fault"
	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/verbstest"
)

// faults are controlled by files in the directory $KRPING_FAULTS.
var faults = mustFaults()

func mustFaults() *fault.Faults {
	dir := os.Getenv("KRPING_FAULTS")
	if dir == "" {
		panic(errors.New("this build injects faults: KRPING_FAULTS must name a directory for their settings"))
	}
	f, err := fault.New(dir)
	if err != nil {
		panic(err)
	}
	return f
}

func withStoreFaults(s store.Store, volume string) store.Store { return faults.Store(s, volume) }

func withConnFaults(t transport.Transport, volume string) transport.Transport {
	return faults.Transport(t, volume)
}

func withVerbsFaults(conn verbstest.Conn, size uint32) verbstest.Conn {
	return faults.VerbsConn(conn, int(size))
}

func faultyReject(volume string) error { return faults.Reject(volume) }
