// SPDX-License-Identifier: Apache-2.0

//go:build lab

package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/soak"
)

const (
	crashMoments = 3   // per file system
	soakMoments  = 50  // in `make soak`
	keptFiles    = 100 // of each writer; it removes older ones
	mostQueued   = 60  // copies, of 1024: the load waits for the tap, so that none is dropped
)

// A tap's client dies at random moments under a load that flushes often, and its target goes on. What the target has then
// is a state of the client's disk at some earlier moment: the journal can be replayed, the file system has no error, and
// a file is there only if all that was made stable before is.
func TestCrash(t *testing.T) {
	guest.Run(t, "modprobe", "loop")
	for name, fs := range map[string]struct {
		size   string
		mkfs   []string
		target []string // options
		check  []string
		mount  string // options
	}{
		// The journal is so small that it is written back all the time.
		"ext4": {"64M", []string{"mkfs.ext4", "-q", "-F", "-b", "1024", "-J", "size=1", "-E", "nodiscard,lazy_itable_init=0"}, nil,
			[]string{"fsck.ext4", "-fn"}, "loop"},
		"xfs": {"320M", []string{"mkfs.xfs", "-q", "-f", "-K"}, []string{"--writeback"},
			[]string{"xfs_repair", "-n"}, "loop,nouuid"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCrash(t, fs.size, fs.target...)
			guest.Run(t, append(fs.mkfs, r.path)...)
			r.mount = filepath.Join(t.TempDir(), "mount")
			mount(t, r.path, r.mount, "noatime")
			moments := crashMoments
			if testing.Short() {
				moments = 2
			}
			if soak.Duration(t) > 0 {
				moments = soakMoments
			}
			r.start()
			for i := range moments {
				r.moment()
				r.verify(fs.check, fs.mount)
				if t.Failed() {
					t.Fatalf("after moment %d", i)
				}
			}
			r.end()
			t.Logf("%d files made stable, %d files checked after %d crashes: %v", r.synced(), r.checked, moments, guest.Session(t, "vol0"))
		})
	}
}

func mount(t *testing.T, from, to, options string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	guest.Run(t, "mount", "-o", options, from, to)
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount: %v", err)
		}
	})
}

// crash is a tap with a file system, under load.
type crash struct {
	t       *testing.T
	rnd     *rand.Rand
	knobs   string // of the bridge's faults
	store   string
	path    string
	mount   string
	bridge  *guest.Bridge
	gate    sync.RWMutex // held for reading while a writer works
	writers [3]writer
	queued  atomic.Int64
	over    chan struct{}
	running sync.WaitGroup
	checked int
}

// writer makes one file after the other stable.
type writer struct {
	r      *crash
	name   string
	synced atomic.Int64 // files made stable so far
	sure   int64        // of these, when the target was last known to have all
}

func newCrash(t *testing.T, size string, options ...string) *crash {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &crash{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), knobs: t.TempDir(), store: guest.StorePath(t), over: make(chan struct{})}
	port := guest.NextPort()
	r.bridge = guest.StartFaultyBridge(t, port, r.knobs, r.store, size+"iB", options...)
	r.path = guest.Attach(t, port, ",queues=4,mode=tap,backing=ram:"+size+patient)
	for i := range r.writers {
		r.writers[i].r, r.writers[i].name = r, fmt.Sprintf("writer%d", i)
	}
	return r
}

// start starts the load. The target takes longer for every fourth access, so that answers come out of order.
func (r *crash) start() {
	for knob, value := range map[string]string{"ms": "8", "rate": "4"} {
		if err := os.WriteFile(filepath.Join(r.knobs, "store_stall", knob), []byte(value), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	for i := range r.writers {
		if err := os.Mkdir(filepath.Join(r.mount, r.writers[i].name), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	pair := r.makePair()
	for i := range r.writers {
		r.running.Go(r.writers[i].work)
	}
	r.running.Go(func() { r.pair(pair) })
	r.running.Go(r.watch)
	r.t.Cleanup(r.end)
}

func (r *crash) end() {
	select {
	case <-r.over:
	default:
		close(r.over)
	}
	r.running.Wait()
}

// watch keeps r.queued up to date.
func (r *crash) watch() {
	for !r.ended() {
		n, err := strconv.ParseInt(guest.Session(r.t, "vol0")["queued"], 10, 64)
		if err != nil {
			r.t.Errorf("queued: %v", err)
			return
		}
		r.queued.Store(n)
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *crash) ended() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// step does one step of a writer, and says whether it may do another.
func (r *crash) step(what string, do func() error) bool {
	time.Sleep(2 * time.Millisecond) // until watch has looked
	for r.queued.Load() > mostQueued && !r.ended() {
		time.Sleep(2 * time.Millisecond)
	}
	r.gate.RLock()
	defer r.gate.RUnlock()
	if r.ended() {
		return false
	}
	if err := do(); err != nil {
		r.t.Errorf("%s: %v", what, err)
		return false
	}
	return true
}

func (r *crash) synced() (n int64) {
	for i := range r.writers {
		n += r.writers[i].synced.Load()
	}
	return n
}

func (w *writer) path(root string, n int64) string {
	return filepath.Join(root, w.name, fmt.Sprintf("file%d", n))
}

// content is different for each file, and so is its length.
func (w *writer) content(n int64) []byte {
	rnd := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16), w.name[len(w.name)-1]})
	data := make([]byte, 1+rnd.Uint64()%12000)
	_, _ = rnd.Read(data)
	return data
}

func (w *writer) work() {
	for n := int64(0); w.r.step(w.name, func() error { return w.write(n) }); n++ {
		w.synced.Store(n + 1)
	}
}

// write removes an old file and makes a new one stable.
func (w *writer) write(n int64) error {
	if n >= keptFiles {
		if err := os.Remove(w.path(w.r.mount, n-keptFiles)); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(w.path(w.r.mount, n), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(w.content(n)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

const pairDistance = 1 << 20

func (r *crash) makePair() *os.File {
	r.t.Helper()
	path := filepath.Join(r.mount, "pair")
	if err := os.WriteFile(path, make([]byte, pairDistance+4096), 0o644); err != nil {
		r.t.Fatal(err)
	}
	guest.Run(r.t, "sync", "-f", r.mount)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// pair overwrites two places in turn, with FUA or a flush after each: the first is never older than the second.
func (r *crash) pair(f *os.File) {
	defer f.Close()
	block := guest.Aligned(r.t, 4096)
	for n := uint64(1); r.step("pair", func() error {
		binary.LittleEndian.PutUint64(block, n)
		for _, at := range []int64{0, pairDistance} {
			if _, err := f.WriteAt(block, at); err != nil {
				return err
			}
		}
		return nil
	}); n++ {
	}
}

// moment stops the target while it has copies in flight, as if the client had died: it gets nothing more.
func (r *crash) moment() {
	r.t.Helper()
	r.gate.Lock()
	forwarded(r.t)
	for i := range r.writers {
		r.writers[i].sure = r.writers[i].synced.Load()
	}
	r.gate.Unlock()
	time.Sleep(guest.Slow(200*time.Millisecond) + time.Duration(r.rnd.Int64N(int64(guest.Slow(600*time.Millisecond)))))
	guest.Signal(r.t, r.bridge.Cmd, unix.SIGSTOP)
	r.gate.Lock()
	defer r.gate.Unlock()
	guest.Run(r.t, "cp", "--sparse=always", r.store, r.image())
	guest.Signal(r.t, r.bridge.Cmd, unix.SIGCONT)
	check(r.t, map[string]int64{"dropped": 0, "dirty_bytes": 0})
}

func (r *crash) image() string { return r.store + ".crashed" }

// verify checks what the target had.
func (r *crash) verify(fsck []string, options string) {
	r.t.Helper()
	root := r.mount + ".crashed"
	mount(r.t, r.image(), root, options) // replays the journal
	for i := range r.writers {
		if err := r.writers[i].verify(root); err != nil {
			r.t.Error(err)
		}
	}
	r.verifyPair(root)
	guest.Run(r.t, "umount", root)
	guest.Run(r.t, append(fsck, r.image())...)
}

// verify checks that the files are without a gap, and all but the last one complete.
func (w *writer) verify(root string) error {
	entries, err := os.ReadDir(filepath.Join(root, w.name))
	if err != nil {
		return err
	}
	last := int64(-1)
	for _, e := range entries {
		n, err := strconv.ParseInt(strings.TrimPrefix(e.Name(), "file"), 10, 64)
		if err != nil {
			return err
		}
		last = max(last, n)
	}
	if last+1 < w.sure || last > w.synced.Load() {
		return fmt.Errorf("%s: %d files, want from %d, which the target had before, to %d", w.name, last+1, w.sure, w.synced.Load()+1)
	}
	// The file that is removed next may be gone.
	for n := max(0, last-keptFiles+2); n < max(last, w.sure); n++ {
		data, err := os.ReadFile(w.path(root, n))
		if err != nil {
			return fmt.Errorf("file %d is there: %w", last, err)
		}
		if !bytes.Equal(data, w.content(n)) {
			return fmt.Errorf("file %d is there: %s/file%d was made stable before, but its %d bytes are not what was written", last, w.name, n, len(data))
		}
		w.r.checked++
	}
	return nil
}

func (r *crash) verifyPair(root string) {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "pair"))
	if err != nil || len(data) < pairDistance+8 {
		r.t.Errorf("pair: %d bytes, %v", len(data), err)
		return
	}
	first, second := binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[pairDistance:])
	if second > first || first > second+1 {
		r.t.Errorf("pair: the places have %d and %d, want them equal or the first one more", first, second)
	}
}
