// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package main

import (
	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/verbstest"
)

// This build injects no faults: see faults.go.

func withStoreFaults(s store.Store, _ string) store.Store                { return s }
func withConnFaults(t transport.Transport, _ string) transport.Transport { return t }
func withVerbsFaults(c verbstest.Conn, _ uint32) verbstest.Conn          { return c }
func faultyReject(string) error                                          { return nil }
