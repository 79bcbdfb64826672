// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package main

import (
	"krping/bridge/store"
	"krping/bridge/transport"
)

// This build injects no faults: see faults.go.

func withStoreFaults(s store.Store, _ string) store.Store                { return s }
func withConnFaults(t transport.Transport, _ string) transport.Transport { return t }
func faultyReject(string) error                                          { return nil }
