// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/rs/zerolog/log"
	"golang.org/x/sys/unix"

	"krping/agent/host/rdmalink"
	"krping/agent/packets/capture"
	"krping/bridge/cli"
)

func (p *program) capture(ctx context.Context, f captureFlags) error {
	if f.read == "" && f.netdev == "" {
		links, err := rdmalink.List()
		if err != nil {
			return err
		}
		if f.netdev, err = defaultInterface(links); err != nil {
			return err
		}
	}
	source, err := openSource(f)
	if err != nil {
		return err
	}
	defer source.close()
	v, err := newCaptureView(p.out, f)
	if err != nil {
		return err
	}
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	wait := newCaptureWait(f, v)
	s, err := source.run(ctx, v)
	wait.end()
	err = errors.Join(err, v.end(s))
	if err == nil || v.seen > 0 {
		v.report(s, source.passed())
	}
	return err
}

// newCaptureWait shows progress if nothing is printed until the end.
func newCaptureWait(f captureFlags, v *captureView) *wait {
	switch {
	case v.perPacket || f.ladder:
		return &wait{done: make(chan struct{})}
	case f.read != "":
		return newWait("reading " + f.read)
	}
	return newTimed("capturing", f.duration)
}

// defaultInterface returns the network interface with an RDMA device: the only one, or the only one whose
// port is active.
func defaultInterface(links []rdmalink.Link) (string, error) {
	var all, active []string
	for _, l := range links {
		for _, port := range l.Ports {
			if port.Netdev == "" {
				continue
			}
			all = append(all, port.Netdev)
			if port.State == rdmalink.Active {
				active = append(active, port.Netdev)
			}
		}
	}
	for _, netdevs := range [][]string{all, active} {
		slices.Sort(netdevs)
		if netdevs = slices.Compact(netdevs); len(netdevs) == 1 {
			return netdevs[0], nil
		}
	}
	if len(all) == 0 {
		return "", usagef("--interface is needed, as no interface has an RDMA device; this host has %s", strings.Join(netdevs(), ", "))
	}
	return "", usagef("--interface is needed, as several have RDMA devices: %s", strings.Join(slices.Compact(all), ", "))
}

// packetSource is a file or an interface.
type packetSource struct {
	run    func(context.Context, *captureView) (capture.Statistics, error)
	passed func() uint64 // packets of any protocol; 0 for a file
	close  func()
}

func openSource(f captureFlags) (packetSource, error) {
	if f.read != "" {
		return openFile(f.read)
	}
	live, err := capture.Open(f.netdev, f.tcpPorts())
	if errors.Is(err, unix.EPERM) {
		return packetSource{}, fmt.Errorf("%w: capturing needs CAP_NET_RAW", err)
	}
	if err != nil {
		return packetSource{}, err
	}
	log.Info().Msgf("capturing from %s", f.netdev)
	return packetSource{
		func(ctx context.Context, v *captureView) (capture.Statistics, error) {
			err := live.Run(ctx, v.add, v.flush)
			s, counted := live.Statistics()
			return s, errors.Join(err, counted)
		},
		live.Passed,
		func() { _ = live.Close() },
	}, nil
}

func openFile(path string) (packetSource, error) {
	file, err := os.Stdin, error(nil)
	if path != "-" {
		file, err = os.Open(path)
	} else if cli.IsTerminal(file) {
		err = usagef("--read -: standard input is a terminal; it must be a capture, as from tcpdump -w -")
	}
	if err != nil {
		return packetSource{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return packetSource{}, errors.Join(err, file.Close())
	}
	return packetSource{
		func(ctx context.Context, v *captureView) (capture.Statistics, error) {
			in, stopped := io.Reader(file), ctx.Err
			if !info.Mode().IsRegular() { // its other end may still be capturing
				in, stopped = piped(ctx, file, v.flush), func() error { return nil }
			}
			s, err := capture.Read(in, func(data []byte, info gopacket.CaptureInfo) (bool, error) {
				if err := stopped(); err != nil {
					return false, err
				}
				return v.add(data, info)
			})
			if err != nil {
				err = fmt.Errorf("read %s: %w", path, err)
			}
			return s, err
		},
		func() uint64 { return 0 },
		func() { _ = file.Close() },
	}, nil
}

// flushDelay is how long what a pipe still has is waited for after an interruption.
const flushDelay = time.Second

// piped returns a reader of a pipe. It calls idle whenever it may wait, and ends soon after ctx does.
func piped(ctx context.Context, file io.Reader, idle func() error) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, file)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { time.AfterFunc(flushDelay, func() { _ = w.Close() }) })
	return idleReader{r, idle}
}

type idleReader struct {
	io.Reader
	idle func() error
}

func (r idleReader) Read(p []byte) (int, error) {
	if err := r.idle(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
