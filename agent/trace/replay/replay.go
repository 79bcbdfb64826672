// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"krping/agent/disk/pattern"
	"krping/agent/disk/rawio"
	"krping/agent/trace/biotrace"
	"krping/agent/trace/bioview"
)

// maxMemory is the most memory in bytes that a replay takes for its buffers: a recording may come from
// anyone.
const maxMemory = 1 << 30

// Player replays recordings.
type Player struct {
	Device *rawio.Device   // opened for direct I/O, and for writing if the recording writes
	Data   pattern.Pattern // of the data that is written
	Speed  float64         // factor of the recorded speed; 0: do not wait
	Depth  int             // maximum number of bios in flight
}

// Result describes a replay.
type Result struct {
	Bios    int
	Bytes   uint64
	Elapsed time.Duration
	Late    time.Duration   // maximum delay of a bio against its time in the recording
	Summary bioview.Summary // of the latencies of the system calls
}

// Play submits all bios of a recording, each at its time. It stops at the first error, which it
// returns with the result so far, or when ctx ends.
func (p *Player) Play(ctx context.Context, r *Recording) (*Result, error) {
	switch size := int64(r.Largest()); {
	case size > 0 && size%p.Device.Block != 0:
		return nil, fmt.Errorf("the recording has I/Os of %d bytes, not a multiple of the device's block size, %d", size, p.Device.Block)
	case size > maxMemory:
		return nil, fmt.Errorf("the recording has an I/O of %d bytes: more than %d cannot be replayed: %w", size, maxMemory, unix.EINVAL)
	case size*int64(p.Depth) > maxMemory:
		return nil, fmt.Errorf("the recording has I/Os of %d bytes: at a depth of %d they need more memory than %d bytes; the depth must be at most %d: %w",
			size, p.Depth, maxMemory, maxMemory/size, unix.EINVAL)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		workers sync.WaitGroup
		mu      sync.Mutex
		result  = &Result{}
	)
	bios := make(chan scheduled)
	for range p.Depth {
		buf, err := rawio.Buffer(max(int(r.Largest()), 1))
		if err != nil {
			cancel(err)
			break
		}
		workers.Go(func() {
			defer rawio.Free(buf)
			for s := range bios {
				done, err := p.submit(s, buf)
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				result.add(&done, done.Time.Sub(s.due))
				mu.Unlock()
			}
		})
	}
	start := time.Now()
	p.schedule(ctx, r, bios)
	close(bios)
	workers.Wait()
	result.Elapsed = time.Since(start)
	if err := context.Cause(ctx); err != nil {
		return result, err
	}
	return result, nil
}

// scheduled is a bio with the time to submit it.
type scheduled struct {
	bio *biotrace.Bio
	due time.Time
}

func (p *Player) schedule(ctx context.Context, r *Recording, to chan<- scheduled) {
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range r.List {
		s := scheduled{&r.List[i], time.Now()}
		if p.Speed > 0 {
			s.due = start.Add(time.Duration(float64(s.bio.Time.Sub(r.List[0].Time)) / p.Speed))
			timer.Reset(time.Until(s.due))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		select {
		case to <- s:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Result) add(b *biotrace.Bio, late time.Duration) {
	r.Bios++
	r.Bytes += uint64(b.Bytes)
	r.Late = max(r.Late, late)
	r.Summary.Add(b)
}

// submit submits a bio, and returns it with its new times.
func (p *Player) submit(s scheduled, buf []byte) (biotrace.Bio, error) {
	op, err := operationOf(s.bio)
	if err != nil {
		return biotrace.Bio{}, err
	}
	offset, data := int64(s.bio.Sector*sectorSize), buf[:min(int(s.bio.Bytes), len(buf))]
	if s.bio.Op == "WRITE" {
		p.Data.Fill(data, offset)
	}
	done := biotrace.Bio{Op: s.bio.Op, Sector: s.bio.Sector, Bytes: s.bio.Bytes, Time: time.Now()}
	if err := op(p.Device, data, s.bio); err != nil {
		return done, fmt.Errorf("%s of %d bytes at byte %d of %s: %w", strings.ToLower(s.bio.Op), s.bio.Bytes, offset, p.Device.Name(), err)
	}
	done.Total = max(time.Since(done.Time), 1)
	return done, nil
}

// operation submits a bio.
type operation func(d *rawio.Device, data []byte, b *biotrace.Bio) error

func operationOf(b *biotrace.Bio) (operation, error) {
	switch b.Op {
	case "READ":
		return read, nil
	case "WRITE":
		return write, nil
	case "FLUSH":
		return func(d *rawio.Device, _ []byte, _ *biotrace.Bio) error { return unix.Fdatasync(int(d.Fd())) }, nil
	case "DISCARD":
		return rangeIoctl(unix.BLKDISCARD), nil
	case "WRITE_ZEROES":
		return rangeIoctl(unix.BLKZEROOUT), nil
	default:
		return nil, fmt.Errorf("operation %s cannot be replayed", b.Op)
	}
}

var errShort = errors.New("short write")

func read(d *rawio.Device, data []byte, b *biotrace.Bio) error {
	_, err := d.ReadAt(data, int64(b.Sector*sectorSize))
	return err
}

func write(d *rawio.Device, data []byte, b *biotrace.Bio) error {
	if strings.Contains(b.Flags, "PREFLUSH") {
		if err := unix.Fdatasync(int(d.Fd())); err != nil {
			return err
		}
	}
	flags := 0
	if strings.Contains(b.Flags, "FUA") {
		flags = unix.RWF_DSYNC
	}
	n, err := unix.Pwritev2(int(d.Fd()), [][]byte{data}, int64(b.Sector*sectorSize), flags)
	if err == nil && n < len(data) {
		err = errShort
	}
	return err
}

func rangeIoctl(request uint) operation {
	return func(d *rawio.Device, _ []byte, b *biotrace.Bio) error {
		bounds := [2]uint64{b.Sector * sectorSize, uint64(b.Bytes)}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), uintptr(request), uintptr(unsafe.Pointer(&bounds))); errno != 0 {
			return errno
		}
		return nil
	}
}
