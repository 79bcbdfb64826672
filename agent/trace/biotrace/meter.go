// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"time"
)

// Meter has histograms of the latencies of chosen devices, which the kernel fills without an event for
// each bio. Of a disk of NVMe multipath, whose requests are those of its paths, it has only the totals. It
// must not be used by several goroutines at once.
type Meter struct {
	probe  *probe
	series map[uint32][]uint32 // by device: indexes of its histograms, one for each of meteredOps
	paths  map[uint32]string   // by device: numbers are reused, paths tell them apart
	free   []uint32            // unused indexes of histograms
	names  *deviceNames
	disks  uint64 // measured_disks of bio.bpf.c
}

// Schema is the schema of the buckets, as in Prometheus' native histograms: bucket i counts
// latencies in (2^((i-1)/8), 2^(i/8)] seconds. Latencies below 1 us or above 1024 s are in the first
// or the last bucket.
const Schema = 3

const lowestBucket = -160 // LOWEST of bio.bpf.c

// Histogram has the latencies of one stage of one operation on a device.
type Histogram struct {
	Device, Op string
	Stage      Stage
	Count      uint64
	Sum        time.Duration
	Buckets    map[int]uint64 // by index; without empty ones
}

// Upper returns the upper limit of bucket i.
func Upper(bucket int) time.Duration {
	return time.Duration(math.Exp2(float64(bucket)/(1<<Schema)) * float64(time.Second))
}

// Quantile returns the latency that a fraction q, from 0 to 1, of the bios does not exceed: the
// upper limit of its bucket, at most 9% above the exact value. It is 0 for an empty histogram.
func (h Histogram) Quantile(q float64) time.Duration {
	rank, seen := uint64(math.Ceil(q*float64(h.Count))), uint64(0)
	for _, bucket := range slices.Sorted(maps.Keys(h.Buckets)) {
		seen += h.Buckets[bucket]
		if seen >= max(rank, 1) {
			return Upper(bucket)
		}
	}
	return 0
}

// Sub returns the difference to an older state of the same histogram.
func (h Histogram) Sub(older Histogram) Histogram {
	d := h
	d.Count -= older.Count
	d.Sum -= older.Sum
	d.Buckets = map[int]uint64{}
	for bucket, n := range h.Buckets {
		if n -= older.Buckets[bucket]; n > 0 {
			d.Buckets[bucket] = n
		}
	}
	return d
}

var meteredOps = []uint32{0, 1, 2, 3, 9} // READ, WRITE, FLUSH, DISCARD, WRITE_ZEROES

const maxMetered = 64 // devices

// NewMeter loads the program. It measures no device until WatchOnly, and is not attached to the tracepoints
// while there is none to measure.
func NewMeter() (*Meter, error) {
	slots := uint32(maxMetered * len(meteredOps))
	p, err := load(map[string]any{"metering": true}, map[string]uint32{"series": slots, "histograms": slots, "events": 4096})
	if err != nil {
		return nil, err
	}
	m := &Meter{probe: p, series: map[uint32][]uint32{}, paths: map[uint32]string{}, names: newDeviceNames(nil)}
	for slot := range slots {
		m.free = append(m.free, slot)
	}
	if err := p.attach(); err != nil { // so that it is known now if that fails
		return nil, errors.Join(err, m.Close())
	}
	if err := p.detach(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Close detaches from the tracepoints.
func (m *Meter) Close() error { return m.probe.close() }

// WatchOnly measures the disks at these paths, with their partitions, and discards the histograms of
// all others. A path that does not exist is ignored: its disk is being added or removed. The module
// cannot be unloaded while any disk is measured.
func (m *Meter) WatchOnly(paths []string) error {
	var errs []error
	wanted := map[uint32]string{}
	for _, path := range paths {
		switch dev, err := deviceNumber(path); {
		case err == nil:
			wanted[dev] = path
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	for dev, path := range m.paths {
		if wanted[dev] != path {
			errs = append(errs, m.unwatch(dev))
		}
	}
	for dev, path := range wanted {
		if err := m.watch(dev, path); err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Meter) watch(dev uint32, path string) error {
	if _, ok := m.paths[dev]; ok {
		return nil
	}
	if len(m.free) < len(meteredOps) {
		return fmt.Errorf("at most %d devices can be measured at once", maxMetered)
	}
	// The bit stays when the disk is no longer watched: its bios in flight must still end.
	m.disks |= diskBit(dev)
	if err := m.probe.objects.MeasuredDisks.Set(m.disks); err != nil {
		return err
	}
	if err := errors.Join(m.probe.attach(), m.probe.attachModule()); err != nil {
		return errors.Join(err, m.rest())
	}
	slots := slices.Clone(m.free[:len(meteredOps)])
	m.free = m.free[len(meteredOps):]
	m.series[dev], m.paths[dev] = slots, path
	for i, slot := range slots {
		err := m.probe.objects.Histograms.Put(slot, bioMeasured{}) // clears what another device left
		if err == nil {
			err = m.probe.objects.Series.Put(bioSeriesKey{Disk: dev, Op: meteredOps[i]}, slot)
		}
		if err != nil {
			return errors.Join(err, m.unwatch(dev))
		}
	}
	return nil
}

func (m *Meter) unwatch(dev uint32) error {
	for i := range m.series[dev] {
		_ = m.probe.objects.Series.Delete(bioSeriesKey{Disk: dev, Op: meteredOps[i]}) // not all exist if watch failed
	}
	m.free = append(m.free, m.series[dev]...)
	delete(m.series, dev)
	delete(m.paths, dev)
	delete(m.names.known, dev)
	return m.rest()
}

// rest detaches from the tracepoints if no disk is measured.
func (m *Meter) rest() error {
	if len(m.series) > 0 {
		return nil
	}
	return m.probe.detach()
}

// diskBit returns the bit of a disk in measured_disks: followed in bio.bpf.c.
func diskBit(dev uint32) uint64 { return 1 << (dev * 0x9e3779b1 >> 26) }

// Read returns the histograms of each disk since it is measured, without empty ones, and what has been
// missed since NewMeter.
func (m *Meter) Read() ([]Histogram, Lost, error) {
	var all []Histogram
	for _, dev := range slices.Sorted(maps.Keys(m.series)) {
		for i, slot := range m.series[dev] {
			var counted bioMeasured
			if err := m.probe.objects.Histograms.Lookup(slot, &counted); err != nil {
				return nil, Lost{}, fmt.Errorf("read the histograms: %w", err)
			}
			for stage, c := range counted.Stages {
				if c.Count == 0 {
					continue
				}
				h := Histogram{
					Device: m.names.name(dev), Op: ops[meteredOps[i]], Stage: Stage(stage),
					Sum: time.Duration(c.SumNs), Buckets: map[int]uint64{},
				}
				for bucket, n := range c.Buckets {
					if n > 0 {
						h.Buckets[bucket+lowestBucket] = n
						h.Count += n // not c.Count: the kernel keeps counting while this reads
					}
				}
				all = append(all, h)
			}
		}
	}
	lost, err := m.probe.lost()
	return all, lost, err
}
