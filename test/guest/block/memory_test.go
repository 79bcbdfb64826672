// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// A read whose two parts go to the same memory finds that the data does not match its CRC. The second attempt
// accepts that: it is no error.
func TestReadIntoTheSameMemory(t *testing.T) {
	const half = 64 << 10
	_, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, "")
	device, buf := guest.OpenDirect(t, path), guest.Aligned(t, 2*half)
	copy(buf, bytes.Repeat([]byte{1}, half))
	copy(buf[half:], bytes.Repeat([]byte{2}, half))
	if _, err := device.WriteAt(buf, 0); err != nil {
		t.Fatal(err)
	}
	clear(buf)
	n, err := unix.Preadv(int(device.Fd()), [][]byte{buf[:half], buf[:half]}, 0)
	if err != nil || n != 2*half {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if !bytes.Equal(buf[:half], bytes.Repeat([]byte{2}, half)) {
		t.Errorf("the memory begins with %d, want 2, from the second part", buf[0])
	}
	if s := guest.Session(t, "vol0"); s["crc_errors"] == "0" || s["errors"] != "0" {
		t.Errorf("the first attempt matched, or the second did not: %v", s)
	}
}

// A program changes its memory while it is written: some state of it, or a mixture, is stored without an error.
func TestWriteOfChangingMemory(t *testing.T) {
	_, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, "")
	device, buf := guest.OpenDirect(t, path), guest.Aligned(t, 256<<10)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				buf[i*4099%len(buf)]++
			}
		}
	}()
	for i := range 100 {
		if _, err := device.WriteAt(buf, int64(i%16)<<18); err != nil {
			t.Errorf("write %d: %v", i, err)
			break
		}
	}
	close(stop)
	<-stopped
	t.Logf("%s of 100 writes changed while they were sent", guest.Session(t, "vol0")["crc_errors"])
}
