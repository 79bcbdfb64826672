// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package fs tests file systems on the block device whose target is killed meanwhile.
package fs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"krping/agent/disk/pattern"
	"krping/test/guest/internal/guest"
	"krping/test/internal/soak"
)

// A little more than the smallest volume that mkfs.xfs accepts.
const size = "320MiB"

const limit = 2 * time.Minute // for steps that take 20 s after their last fault

func TestExt4(t *testing.T) {
	run(t, 9910, []string{"mkfs.ext4", "-q", "-F"}, []string{"fsck.ext4", "-fn"})
}

func TestXFS(t *testing.T) {
	run(t, 9911, []string{"mkfs.xfs", "-q", "-f", "-K"}, []string{"xfs_repair", "-n"})
}

// run fills a file system and stresses it while its target is killed. Afterwards it checks every byte and the file
// system's structure.
func run(t *testing.T, port int, mkfs, fsck []string) {
	began := time.Now()
	step := func(what string) {
		t.Logf("%s: %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	store := guest.StorePath(t)
	start := func() *guest.Bridge { return guest.StartBridge(t, port, store, size) }
	bridge := start()
	dev := guest.Attach(t, port, ",queues=2,depth=32")
	guest.Run(t, append(mkfs, dev)...)
	dir := filepath.Join(t.TempDir(), "mount")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	guest.Run(t, "mount", dev, dir)
	step("make and mount")
	t.Cleanup(func() { // if the test has failed before
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount: %v", err)
		}
	})
	// killDuring runs work and kills the target at these times after its start.
	killDuring := func(what string, work func() error, after ...time.Duration) {
		t.Helper()
		begun := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- work() }()
		for _, d := range after {
			time.Sleep(time.Until(begun.Add(d)))
			bridge.Kill()
			bridge = start()
		}
		if err := guest.Within(t, limit, what, ended); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		step(what)
	}

	var sums map[string][32]byte
	killDuring("make a tree", func() (err error) {
		if sums, err = makeTree(filepath.Join(dir, "tree"), 2000, uint64(port)); err != nil {
			return err
		}
		return syncFS(dir)
	}, 2*time.Second)
	guest.Run(t, "umount", dir)
	step("unmount")
	guest.Run(t, "mount", dev, dir)
	step("mount")

	last := max(12*time.Second, soak.Duration(t)/10)
	killDuring("stress-ng", func() error {
		out, err := guest.TryRun("stress-ng", "--hdd", "2", "--hdd-bytes", "8M", "--hdd-opts", "direct,sync", "--verify",
			"-t", fmt.Sprintf("%.0fs", last.Seconds()), "--temp-path", dir)
		t.Log(out)
		return err
	}, last/4, last*3/4)
	guest.Run(t, "umount", dir)
	step("unmount")
	guest.Run(t, append(fsck, dev)...)
	step("check")
	guest.Run(t, "mount", dev, dir)
	verifyTree(t, filepath.Join(dir, "tree"), sums)
	guest.Run(t, "umount", dir)
	if s := guest.Session(t, "vol0"); s["errors"] != "0" || s["crc_errors"] != "0" || s["reconnects"] == "0" {
		t.Errorf("session: %v", s)
	}
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		t.Errorf("stop: %v", err)
	}
	step("mount, verify and stop")
	guest.Run(t, append(fsck, store)...)
	step("check the store")
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// makeTree creates files like those of a kernel source tree: mostly small, about twenty per directory, four levels deep.
// It returns the SHA-256 of each.
func makeTree(root string, files int, seed uint64) (map[string][32]byte, error) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	sums := make(map[string][32]byte, files)
	data := make([]byte, 256<<10)
	for i := range files {
		path := filepath.Join(root, fmt.Sprintf("arch%d/sub%d/dir%d/file%d.c", i%3, i/20%5, i/20, i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		content := data[:rnd.IntN(1<<(6+rnd.IntN(9)))] // up to 16 KiB
		if i%200 == 0 {
			content = data[:len(data)-i]
		}
		p, err := pattern.New("random", seed+uint64(i))
		if err != nil {
			return nil, err
		}
		p.Fill(content, 0)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return nil, err
		}
		sums[path] = sha256.Sum256(content)
	}
	return sums, nil
}

// verifyTree reads all files in parallel.
func verifyTree(t *testing.T, root string, sums map[string][32]byte) {
	t.Helper()
	var readers errgroup.Group
	readers.SetLimit(16)
	seen := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		want, known := sums[path]
		if !known {
			return fmt.Errorf("%s: the test did not write this file", path)
		}
		seen++
		readers.Go(func() error {
			data, err := os.ReadFile(path)
			if err == nil && sha256.Sum256(data) != want {
				err = fmt.Errorf("%s: its %d bytes differ from what was written", path, len(data))
			}
			return err
		})
		return nil
	})
	if err := errors.Join(err, readers.Wait()); err != nil || seen != len(sums) {
		t.Errorf("%d files of %d: %v", seen, len(sums), err)
	}
}
