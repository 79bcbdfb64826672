// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"krping/bridge/store"
	"krping/bridge/uuid"
	"krping/bridge/verbs"
	"krping/bridge/wire"
)

// A start that fails because no RDMA device has the address leaves the store as it was: a file without a UUID
// gets none.
func TestFailedStartKeepsNoIdentity(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "") // else it waits for a device
	dir := t.TempDir()
	path := filepath.Join(dir, "a.img")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"--listen", "192.0.2.1", "--store", "file:" + path}) // of no host: RFC 5737
	if !errors.Is(err, verbs.ErrNoDevice) && !errors.Is(err, verbs.ErrNoManager) {
		t.Errorf("error %v", err)
	}
	var ids [2]uuid.UUID
	for i := range ids {
		s, err := store.Open("file:"+path, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = s.Identity().UUID
		_ = s.Close()
	}
	if ids[0] == ids[1] {
		t.Errorf("the file has the UUID %s", ids[0])
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files: %v, %v", left, err)
	}
}

// A client of a volume for which there is no memory is told so, in its version of the protocol.
func TestRefusalForResources(t *testing.T) {
	b := &bridge{log: zerolog.Nop()}
	o := options{listen: []string{"192.0.2.1"}, store: "mem:", size: "1M", name: "vol0", blockSize: "512"}
	if err := b.addVolumes(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.closeTarget() }()
	for _, version := range []uint8{1, wire.Version} {
		got, err := wire.DecodeReject(b.endpoints[0].refuse(wire.Hello{Version: version}.Append(nil)))
		if want := (wire.Reject{Version: version, Reason: wire.RejectResources}); err != nil || *got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
}
