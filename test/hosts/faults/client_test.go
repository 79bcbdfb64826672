// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krping/test/hosts/internal/hosts"
	"krping/test/internal/needs"
)

// The client's host dies while it writes to file systems. After a journal replay another client finds every file
// and write that an fsync had covered.
func TestClientHostKilledWithFileSystems(t *testing.T) {
	needs.Test(t, needs.Once)
	h := hosts.Boot(t)
	storage, client := h.Lab.VM(0), h.Lab.VM(1)
	for _, name := range []string{"vm1/ext4.img", "vm1/ext4.img.krping", "vm1/xfs.img", "vm1/xfs.img.krping", "vm2/ext4.log", "vm2/xfs.log", "vm2/ext4.sums", "vm2/xfs.sums"} {
		if err := os.RemoveAll(filepath.Join(filepath.Dir(storage.Out()), name)); err != nil { // of an earlier run
			t.Fatal(err)
		}
	}
	create(h, storage, "/lab/out/ext4.img", "320MiB")
	create(h, storage, "/lab/out/xfs.img", "320MiB")
	bridge(h, storage, "--name ext4 --store file:/lab/out/ext4.img --volume xfs=file:/lab/out/xfs.img")
	h.Sh(client, `set -e
for fs in ext4 xfs; do
	mkdir -p /run/$fs
	krpingctl client --addr `+storage.Addr()+` --block $fs > /run/$fs.dev
done
mkfs.ext4 -q -F $(cat /run/ext4.dev)
mkfs.xfs -q -f -K $(cat /run/xfs.dev)
for fs in ext4 xfs; do
	mount $(cat /run/$fs.dev) /run/$fs
	dd if=/dev/zero of=/run/$fs/blocks bs=1M count=16 conv=fsync status=none
	sync -f /run/$fs
done`)
	for _, fs := range []string{"ext4", "xfs"} {
		h.Spawn(client, "acked write --log /lab/out/"+fs+".log --align 4096 --fsync-one 5 /run/"+fs+"/blocks")
		// Whole files. Each is added to the list after an fsync of it and of its directory.
		h.Spawn(client, `bash -c 'cd /run/`+fs+`; for ((i = 0; ; i++)); do head -c $((RANDOM * 4)) /dev/urandom > f$i && sync f$i . && sha256sum f$i >> /lab/out/`+fs+`.sums; done'`)
	}
	lines := func(name, word string) int {
		data, err := os.ReadFile(filepath.Join(client.Out(), name))
		if err != nil {
			return 0 // the file does not exist yet
		}
		return strings.Count(string(data), word)
	}
	h.Eventually(patience, "fsyncs of both kinds on both file systems", func() bool {
		return lines("ext4.log", "flushed") > 10 && lines("xfs.log", "flushed") > 10 && lines("ext4.sums", "\n") > 10 && lines("xfs.sums", "\n") > 10
	})
	client.Kill()
	client = h.Restart()
	// The target's host may still have the dead host's connections, with the same IDs. Its connection manager
	// then rejects a new connection once and drops the old one.
	for _, fs := range []string{"ext4", "xfs"} {
		h.Sh(client, "mkdir -p /run/"+fs+"; krpingctl client --addr "+storage.Addr()+" --block "+fs+" > /run/"+fs+".dev")
	}
	for _, fs := range []string{"ext4", "xfs"} {
		h.Sh(client, "mount $(cat /run/"+fs+".dev) /run/"+fs)
		sums := h.Sh(client, "cd /run/"+fs+"; sha256sum -c --quiet /lab/out/"+fs+".sums && wc -l < /lab/out/"+fs+".sums")
		report := h.Sh(client, "acked check --flushed --log /lab/out/"+fs+".log /run/"+fs+"/blocks")
		t.Logf("%s: %s files intact; %s", fs, strings.TrimSpace(sums), strings.TrimSpace(report))
		h.Sh(client, "umount /run/"+fs)
	}
	h.Sh(client, "fsck.ext4 -fn $(cat /run/ext4.dev) && xfs_repair -n $(cat /run/xfs.dev) && krpingctl stop ext4 && krpingctl stop xfs")
	if log, err := h.Try(client, "dmesg"); err != nil || !strings.Contains(log, "recovery complete") || !strings.Contains(log, "Ending recovery") {
		t.Errorf("%v: the journals were not replayed: %s", err, tail(log))
	}
}

func tail(log string) string { return log[max(0, len(log)-3000):] }
