// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package targets starts the two targets, the module and krping-bridge, in one way, so that a test can
// run against both.
package targets

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// Target is a program that serves volumes.
type Target struct {
	Name  string // of the subtests
	start func(t testing.TB, c Config) *Served
	store func(t testing.TB, size int64) string
}

var (
	Module = Target{"module", serveModule, loopDisk}
	Bridge = Target{"bridge", serveBridge, storeFile}
)

// Config is the volume that a target serves.
type Config struct {
	Name      string // "": vol0
	Port      int
	Store     string // of NewStore, or another file or disk that exists, or the module's ram:SIZE
	BlockSize int    // 0: 512
	ReadOnly  bool
	Writeback bool
	Key       string // "": none
	Allow     string // addresses; "": all
	UUID      string // of the volume; "": one that stays with Store
	Shared    bool   // several sessions may write
}

// Served is a target that serves a volume.
type Served struct {
	Config
	Bridge   *guest.Bridge // nil for the module
	Stop     func()        // stops serving, if it has not: kills the bridge, or stops the volume
	Rejected func() int    // clients so far
	Log      func() string // the bridge's output, or the whole kernel log

	// RemoveDevice removes the RDMA device, and checks that the target releases it. Once the device is
	// back, Return waits until the volume is served again.
	RemoveDevice func(t testing.TB)
	Return       func(t testing.TB)
}

// Each runs a test against each target, as subtests. The bridge hardly depends on the kernel: it is tested on the first one.
func Each(t *testing.T, test func(t *testing.T, target Target)) {
	for _, target := range []Target{Module, Bridge} {
		t.Run(target.Name, func(t *testing.T) {
			if target.Name == Bridge.Name {
				needs.Test(t, needs.Once)
			}
			guest.CheckResources(t)
			test(t, target)
		})
	}
}

// NewStore makes a store of zeros for a volume: a disk for the module, a file for the bridge.
func (g Target) NewStore(t testing.TB, size int64) string { t.Helper(); return g.store(t, size) }

// NewResizable is NewStore, and also returns what gives the store another size.
func (g Target) NewResizable(t testing.TB, size int64) (store string, resize func(size int64)) {
	t.Helper()
	file := storeFile(t, size)
	store = file
	if g.Name == Module.Name {
		store = LoopOf(t, file)
	}
	return store, func(size int64) {
		t.Helper()
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		if store != file {
			guest.Run(t, "losetup", "--set-capacity", store)
		}
	}
}

// Serve serves a volume until Stop, or the end of the test. Port 0 is one that no test has used before.
func (g Target) Serve(t testing.TB, c Config) *Served {
	t.Helper()
	if c.Port == 0 {
		c.Port = guest.NextPort()
	}
	c.Name = cmp.Or(c.Name, "vol0")
	return g.start(t, c)
}

// ServeNew serves a volume with a new store.
func (g Target) ServeNew(t testing.TB, size int64, c Config) *Served {
	t.Helper()
	c.Store = g.NewStore(t, size)
	return g.Serve(t, c)
}

// Again serves the same volume once more, after Stop.
func (s *Served) Again(t testing.TB) *Served {
	t.Helper()
	if s.Bridge != nil {
		return serveBridge(t, s.Config)
	}
	return serveModule(t, s.Config)
}

// WantVolume checks fields of the module's volume. A client sees that its connection is closed before the module
// has freed it, so it waits for them. The bridge does not publish any.
func (s *Served) WantVolume(t testing.TB, pairs ...string) {
	t.Helper()
	if s.Bridge != nil {
		return
	}
	differs := func() bool {
		fields := guest.Volume(t, s.Name)
		for pair := range slices.Chunk(pairs, 2) {
			if fields[pair[0]] != pair[1] {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(guest.Slow(20 * time.Second)); differs(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			late.Errorf(t, "%v, want %q", guest.Volume(t, s.Name), pairs)
			return
		}
	}
}

// storeFile makes a sparse file.
func storeFile(t testing.TB, size int64) string {
	t.Helper()
	path := guest.StorePath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func loopDisk(t testing.TB, size int64) string { t.Helper(); return Loop(t, size) }

// Loop makes a disk of zeros, with more arguments for losetup.
func Loop(t testing.TB, size int64, args ...string) string {
	t.Helper()
	return LoopOf(t, storeFile(t, size), args...)
}

// LoopOf makes a disk of a file, with more arguments for losetup.
func LoopOf(t testing.TB, file string, args ...string) string {
	t.Helper()
	guest.Run(t, "modprobe", "loop")
	argv := append([]string{"losetup"}, args...)
	dev := strings.TrimSpace(guest.Run(t, append(argv, "--show", "-f", file)...))
	t.Cleanup(func() { guest.Run(t, "losetup", "-d", dev) })
	return dev
}

// KeyFile makes a file with a key that only its owner may read.
func KeyFile(t testing.TB, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// options returns those that both targets have.
func (c Config) options(t testing.TB) []string {
	t.Helper()
	var args []string
	if c.BlockSize != 0 {
		args = append(args, "--block-size", strconv.Itoa(c.BlockSize))
	}
	if c.ReadOnly {
		args = append(args, "--read-only")
	}
	if c.Writeback {
		args = append(args, "--writeback")
	}
	if c.Key != "" {
		args = append(args, "--key-file", KeyFile(t, c.Key))
	}
	if c.Shared {
		args = append(args, "--shared")
	}
	if c.Allow != "" {
		args = append(args, "--allow", c.Allow)
	}
	return args
}

// uuid returns the UUID of a volume on a disk. A loop device has none of its own.
func (c Config) uuid() string {
	if c.UUID != "" {
		return c.UUID
	}
	sum := sha256.Sum256([]byte(c.Store))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func serveModule(t testing.TB, c Config) *Served {
	t.Helper()
	args := []string{"server", "--addr", guest.Addr(t), "--port", strconv.Itoa(c.Port), "--block", c.Name, "--backing", c.Store}
	if !strings.HasPrefix(c.Store, "ram:") {
		args = append(args, "--uuid", c.uuid())
	}
	guest.MustKrpingctl(t, append(args, c.options(t)...)...)
	stop := func() {
		if guest.Volume(t, c.Name) != nil { // else it is stopped already
			guest.StopServing(t, c.Name)
		}
	}
	t.Cleanup(stop)
	rejected := func() int {
		n, err := strconv.Atoi(guest.Volume(t, c.Name)["rejected"])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return &Served{
		Config: c, Stop: stop, Rejected: rejected, Log: func() string { return guest.Run(t, "dmesg") },
		RemoveDevice: removeModulesDevice,
		Return:       func(t testing.TB) { t.Helper(); guest.VolumeBecomes(t, "live") },
	}
}

// removeModulesDevice checks that the volume stays, without connections.
func removeModulesDevice(t testing.TB) {
	t.Helper()
	start := time.Now()
	guest.RemoveDevice(t)
	if took := time.Since(start); took > guest.Slow(5*time.Second) {
		late.Errorf(t, "the removal of the device took %v, want less than 5 s", took)
	}
	guest.Eventually(t, 5*time.Second, "the volume has no device and no connection", func() bool {
		v := guest.Volume(t, "vol0")
		return v["state"] == "no_device" && v["queues"] == "0"
	})
}

func serveBridge(t testing.TB, c Config) *Served {
	t.Helper()
	args := append([]string{"--verbose", "--name", c.Name}, c.options(t)...)
	if c.UUID != "" || strings.HasPrefix(c.Store, "/dev/") { // a file keeps its own
		args = append(args, "--uuid", c.uuid())
	}
	b := guest.StartBridge(t, c.Port, c.Store, sizeOf(t, c.Store), args...)
	return &Served{
		Config: c, Bridge: b, Stop: b.Kill, Rejected: func() int { return b.Rejected(t) }, Log: b.Log.String,
		RemoveDevice: b.RemoveDevice,
		Return:       b.Returns,
	}
}

// sizeOf returns the size of a file or disk in bytes.
func sizeOf(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(n, 10)
}
