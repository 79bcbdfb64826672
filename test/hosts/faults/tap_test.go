// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faults

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/internal/needs"
	"krping/test/internal/soak"
	"krping/test/lab"
)

// tapped are file systems on a disk of the client that copies to a volume of the target.
type tapped struct {
	*hosts.Hosts
	rnd             *rand.Rand
	client, storage *lab.VM
}

// fileSystems begins a bash script with what it does for each file system. Its functions start no programs.
const fileSystems = `set -e
shopt -s nullglob
# content DIR N: the content of file N, of a different length each.
content() { printf "$1 $2 %.0s" $(eval echo {1..$(($2 * 919 % 2500 + 1))}); }
# queued FS: how many copies are not answered yet.
queued() { local line; while read -r line; do [[ $line != *" name=$1 role=client "* ]] || n=${line##*queued=}; done < /proc/krping_sessions; n=${n%% *}; }
for fs in ext4 xfs; do
`

// bash runs a script for each file system.
func (h *tapped) bash(vm *lab.VM, script string) string {
	h.T.Helper()
	h.Sh(vm, "cat > /run/script <<'EOF'\n"+fileSystems+script+"\nEOF")
	return h.Sh(vm, "bash /run/script")
}

// start makes the file systems, waits until the target has the first five files of each, and starts to write more.
func (h *tapped) start() {
	h.T.Helper()
	// mkfs.xfs writes zeros to all of its journal, for which a store on the 9p file system has no quick way: small, not
	// the 64 MiB that a supported XFS has. Writes that wait for that may be unanswered for the 30 s that the client allows.
	for _, fs := range []string{"ext4", "xfs"} {
		image := "/lab/out/" + fs + ".img"
		h.Sh(h.storage, "rm -f "+image+" "+image+".krping") // of an earlier round
		create(h.Hosts, h.storage, image, "64MiB")
	}
	bridge(h.Hosts, h.storage, "--name ext4 --store file:/lab/out/ext4.img --volume xfs=file:/lab/out/xfs.img")
	h.bash(h.client, `mkdir -p /run/$fs
	case $fs in
	ext4) mkfs="mkfs.ext4 -q -F -b 1024 -J size=1 -E nodiscard,lazy_itable_init=0";;
	xfs) mkfs="mkfs.xfs -q -f -K --unsupported";;
	esac
	dev=$(krpingctl client --addr `+h.storage.Addr()+` --block $fs --queues 4 --mode tap --backing ram:64M --heartbeat 0)
	$mkfs $dev
	mount -o noatime $dev /run/$fs
	mkdir /run/$fs/{0,1,2}
	cd /run/$fs/0
	for i in {0..4}; do content 0 $i > f$i; sync f$i .; done
	cd /
	for ((i = 0; i < 600; i++)); do queued $fs; [ $n != 0 ] || break; sleep 0.1; done
	[ $n = 0 ]
done`)
	h.Sh(h.client, "cat > /run/load <<'EOF'\n"+fileSystems+`for dir in 0 1 2; do (
	cd /run/$fs/$dir
	i=0
	[ $dir != 0 ] || i=5
	for (( ; ; i++)); do
		while queued $fs; [ $n -gt 60 ]; do sleep 0.02; done
		content $dir $i > f$i
		sync f$i .
	done) & done
done
wait
EOF`)
	h.Spawn(h.client, "bash /run/load")
}

// check checks the volumes: each directory has files without a gap, all but the last one complete. It mounts copies: in
// Linux 7.3, 9p leaves references to pages that XFS reads its log into through a loop device, and frees.
func (h *tapped) check() {
	h.T.Helper()
	h.T.Log(h.bash(h.storage, `mkdir -p /run/$fs.crashed
	cp /lab/out/$fs.img /run/$fs.img
	mount -o loop$([ $fs != xfs ] || echo ,nouuid) /run/$fs.img /run/$fs.crashed
	[ -e /run/$fs.crashed/0/f4 ]
	for dir in 0 1 2; do
		cd /run/$fs.crashed/$dir
		files=(f*)
		last=$((${#files[@]} - 1))
		for ((i = 0; i < last; i++)); do content $dir $i | cmp - f$i; done
		[ $last = -1 ] || [ -e f$last ]
		echo -n "$fs/$dir: ${#files[@]} files; "
	done
	cd /
	umount /run/$fs.crashed
	case $fs in
	ext4) fsck="fsck.ext4 -fn";;
	xfs) fsck="xfs_repair -n";;
	esac
	$fsck /run/$fs.img >/run/fsck.log 2>&1 || { cat /run/fsck.log; exit 1; }
done`))
}

// wait waits for a random moment, until when nothing was dropped.
func (h *tapped) wait() {
	h.T.Helper()
	time.Sleep(2*time.Second + time.Duration(h.rnd.Int64N(int64(2*time.Second))))
	if sessions := h.Sh(h.client, "cat /proc/krping_sessions"); strings.Count(sessions, " dropped=0 ") != 2 || strings.Count(sessions, " dirty_bytes=0") != 2 {
		h.T.Fatalf("the target lacks something already:\n%s", sessions)
	}
}

func (h *tapped) must(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// end stops the load and the sessions.
func (h *tapped) end() {
	h.T.Helper()
	h.must(h.client.Resume())
	h.Sh(h.client, `pkill -f [/]run/load; sleep 0.2; for fs in ext4 xfs; do umount /run/$fs && krpingctl stop $fs; done`)
	h.Sh(h.storage, `pkill -x krping-bridge; while pgrep -x krping-bridge; do sleep 0.1; done; rm -f /lab/out/bridge.log`)
}

// A host that uses a tap stops at a random moment, with its target's host or (in soak) alone: the volume is what the
// host's disk could have been after a crash at some earlier moment. TestCrash in test/guest/tap does that on one host.
func TestTapHostsStop(t *testing.T) {
	needs.Test(t, needs.Once)
	h := &tapped{Hosts: hosts.Boot(t)}
	h.client, h.storage = h.Lab.VM(0), h.Lab.VM(1)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	h.rnd = rand.New(rand.NewPCG(seed, 0))
	// So that there is always something on its way.
	h.Sh(h.client, "modprobe sch_netem && tc qdisc add dev eth0 root netem delay 5ms")
	h.Sh(h.storage, "modprobe loop")
	for began := time.Now(); time.Since(began) < soak.Duration(t)/4; {
		h.start()
		h.wait()
		h.must(h.client.Suspend())
		time.Sleep(time.Second) // the target carries out what it has received
		h.check()
		h.end()
	}
	h.start()
	h.wait()
	h.storage.Kill()
	h.must(h.client.Suspend())
	h.storage = h.Restart()
	h.Sh(h.storage, "modprobe loop")
	h.check()
}
