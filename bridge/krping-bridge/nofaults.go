// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package main

import (
	"krping/bridge/store"
	"krping/bridge/target"
)

// Faults happen in a build for tests only: see faults.go.

func withStoreFaults(s store.Store, _ string) store.Store      { return s }
func withFaults(t target.Transport, _ string) target.Transport { return t }
func faultyReject(string) error                                { return nil }
