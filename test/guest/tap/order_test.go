// SPDX-License-Identifier: Apache-2.0

//go:build lab

package tap

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// fua writes with FUA, so that the data is on stable storage when it returns. The kernel adds no flush to such a write
// if it is asynchronous (Linux AIO).
func fua(t *testing.T, dev *os.File, data []byte, at int64) {
	t.Helper()
	var context uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&context)), 0); errno != 0 {
		t.Fatalf("io_setup: %v", errno)
	}
	defer unix.Syscall(unix.SYS_IO_DESTROY, context, 0, 0)
	const opPwrite = 1
	cb := struct { // struct iocb
		data            uint64
		key             uint32
		flags           uint32
		op, prio        uint16
		fd              uint32
		buf, n          uint64
		offset          int64
		reserved        uint64
		flags2, eventfd uint32
	}{flags: unix.RWF_DSYNC, op: opPwrite, fd: uint32(dev.Fd()), buf: uint64(uintptr(unsafe.Pointer(&data[0]))), n: uint64(len(data)), offset: at}
	list := []*byte{(*byte)(unsafe.Pointer(&cb))}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, context, 1, uintptr(unsafe.Pointer(&list[0]))); errno != 0 {
		t.Fatalf("io_submit: %v", errno)
	}
	var event struct{ data, obj, result, result2 int64 }
	if n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, context, 1, 1, uintptr(unsafe.Pointer(&event)), 0, 0); errno != 0 || n != 1 || event.result != int64(len(data)) {
		t.Fatalf("io_getevents: %d events, %v, result %d", n, errno, event.result)
	}
	runtime.KeepAlive(list)
}

// What the application wrote after a flush or FUA write had ended reaches the target only after that was answered there.
// So a target that is stopped at any moment has a state in which the application's disk could have been after a crash.
func TestTapOrder(t *testing.T) {
	const part, later = 1 << 20, 4 << 20 // the part that stalls; what is written later
	for name, tc := range map[string]struct {
		options string // of the target
		filter  string
		before  func(t *testing.T, dev *os.File, data []byte, stall func(bool))
	}{
		// Flushes are not forwarded: the write alone orders.
		"FUA": {"", ",op=write", func(t *testing.T, dev *os.File, data []byte, stall func(bool)) {
			stall(true)
			fua(t, dev, data, 0)
		}},
		"write and flush": {"", "", func(t *testing.T, dev *os.File, data []byte, stall func(bool)) {
			stall(true)
			if _, err := dev.WriteAt(data, 0); err != nil {
				t.Fatal(err)
			}
			if err := dev.Sync(); err != nil {
				t.Fatal(err)
			}
		}},
		// The target has answered the write, but a crash may lose it.
		"flush": {",writeback", "", func(t *testing.T, dev *os.File, data []byte, stall func(bool)) {
			if _, err := dev.WriteAt(data, 0); err != nil {
				t.Fatal(err)
			}
			forwarded(t)
			stall(true)
			if err := dev.Sync(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			disk := guest.NullDisk(t, "nullb1", map[string]string{"cache_size": "1"})
			store, stall := guest.PartStalling(t, disk, size, part)
			port := guest.NextPort()
			guest.Serve(t, "vol0", port, "backing="+store+tc.options)
			dev := guest.OpenDirect(t, guest.Attach(t, port, ",queues=2,mode=tap,backing=ram:16M"+tc.filter+patient))
			first, second := guest.Aligned(t, 4096), guest.Aligned(t, 4096)
			copy(first, "first")
			copy(second, "second")
			tc.before(t, dev, first, stall)
			if _, err := dev.WriteAt(second, later); err != nil {
				t.Fatal(err)
			}
			time.Sleep(guest.Slow(500 * time.Millisecond))
			if bytes.Equal(guest.ContentAt(t, disk, later, 4096), second) {
				t.Error("the target has the second write although what was before it is not answered")
			}
			if queued := number(t, "queued"); queued < 2 {
				t.Errorf("queued=%d, want at least 2: the first was answered too early", queued)
			}
			stall(false)
			forwarded(t)
			check(t, map[string]int64{"dropped": 0, "dirty_bytes": 0})
			if !bytes.Equal(guest.Content(t, disk, 4096), first) || !bytes.Equal(guest.ContentAt(t, disk, later, 4096), second) {
				t.Error("the target lacks a write")
			}
			_ = dev.Close()
			stop(t, "")
			guest.StopServing(t, "vol0")
		})
	}
}

// A dropped flush is made up for: the target is flushed before the next write.
func TestDroppedFlush(t *testing.T) {
	needs.Test(t, needs.Once)
	for name, drop := range map[string]func(t *testing.T, dev *os.File, bridge *guest.Bridge, data []byte) *guest.Bridge{
		"full": func(t *testing.T, dev *os.File, bridge *guest.Bridge, data []byte) *guest.Bridge {
			guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
			for i := range int64(1024) {
				if _, err := dev.WriteAt(data[:512], i*512); err != nil {
					t.Fatal(err)
				}
			}
			if err := dev.Sync(); err != nil {
				t.Fatal(err)
			}
			check(t, map[string]int64{"drops_full": 1, "dropped_bytes": 0, "dirty_bytes": 0})
			guest.Signal(t, bridge.Cmd, unix.SIGCONT)
			return bridge
		},
		"lost": func(t *testing.T, dev *os.File, bridge *guest.Bridge, data []byte) *guest.Bridge {
			bridge.Kill()
			guest.SessionBecomes(t, "reconnecting")
			if err := dev.Sync(); err != nil {
				t.Fatal(err)
			}
			check(t, map[string]int64{"drops_lost": 1, "dropped_bytes": 0, "dirty_bytes": 0})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, port := guest.StorePath(t), guest.NextPort()
			start := func() *guest.Bridge { return guest.StartBridge(t, port, store, "16MiB", "--writeback") }
			bridge := start()
			dev := guest.OpenDirect(t, guest.Attach(t, port, ",mode=tap,backing=ram:16M"+patient))
			guest.WriteAndSync(t, dev)
			forwarded(t)
			flushes := number(t, "flushes")
			data := guest.Aligned(t, 4096)
			if drop(t, dev, bridge, data) == nil {
				start()
				guest.SessionBecomes(t, "live")
			}
			forwarded(t)
			check(t, map[string]int64{"flushes": flushes})
			for range 2 {
				if _, err := dev.WriteAt(data, 1<<20); err != nil {
					t.Fatal(err)
				}
				forwarded(t)
			}
			check(t, map[string]int64{"flushes": flushes + 1, "dropped": 1, "dirty_bytes": 0})
		})
	}
}

// A program changes its memory while it is written: the backing and the target store the same.
func TestTapOfChangingMemory(t *testing.T) {
	for name, backing := range map[string]string{"memory": "ram:16M", "disk": ""} {
		t.Run(name, func(t *testing.T) {
			if backing == "" {
				backing = ramDisk(t)
			}
			store, port := guest.StorePath(t), guest.NextPort()
			guest.StartBridge(t, port, store, "16MiB")
			path := guest.Attach(t, port, ",mode=tap,backing="+backing+patient)
			dev, buf := guest.OpenDirect(t, path), guest.Aligned(t, 256<<10)
			end, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for i := 0; ; i++ {
					select {
					case <-end:
						return
					default:
						buf[i*4099%len(buf)]++
					}
				}
			}()
			for i := range 64 {
				if _, err := dev.WriteAt(buf, int64(i)<<18); err != nil {
					t.Errorf("write %d: %v", i, err)
					break
				}
				if i%16 == 15 {
					forwarded(t) // no more than fits into the queue
				}
			}
			close(end)
			<-ended
			forwarded(t)
			check(t, map[string]int64{"dropped": 0, "dirty_bytes": 0})
			guest.WantSame(t, path, store)
			if s := guest.Session(t, "vol0"); s["crc_errors"] != "0" {
				t.Errorf("crc_errors=%s: the data changed while it was sent", s["crc_errors"])
			}
		})
	}
}
