// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/lab"
	"krping/test/output"
)

// demo is the state of one run. VM 1 stores, VM 2 has the block device.
type demo struct {
	ctx     context.Context
	lab     *lab.Lab
	storage *lab.VM
	client  *lab.VM
	start   time.Time
}

const limit = 10 * time.Minute

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.1", "kernel: 6.1, 6.12 or newest")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d := &demo{ctx: ctx, start: time.Now()}
	d.say("Booting two hosts with Soft-RoCE between them (kernel %s)", *kernel)
	l, err := lab.Start(ctx, lab.Config{Kernel: *kernel, VMs: 2})
	if err != nil {
		return err
	}
	defer l.Close()
	d.lab, d.storage, d.client = l, l.VM(0), l.VM(1)
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	for _, step := range []func() error{
		d.attach, d.writeTraced, d.verify, d.fileSystem, d.ping, d.statistics, d.bothEnds, d.detach,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if report := l.Complaints(); report != "" {
		return errors.New(report)
	}
	fmt.Printf("\nPASS: all data written on %s is stored on %s (%.0f s)\n", d.client.Addr(), d.storage.Addr(), time.Since(d.start).Seconds())
	return nil
}

// say prints a step and how long the demo has taken so far.
func (d *demo) say(format string, args ...any) {
	took := time.Since(d.start).Round(time.Second)
	fmt.Printf("\n=== [%d:%02d] %s\n", int(took.Minutes()), int(took.Seconds())%60, fmt.Sprintf(format, args...))
}

// shell runs a command in a VM, and prints the command and its output.
func (d *demo) shell(vm *lab.VM, command string) (string, error) {
	fmt.Printf("%s# %s\n", vm.Addr(), command)
	var out bytes.Buffer
	err := vm.Run(d.ctx, d.cmd(command, io.MultiWriter(&out, os.Stdout)))
	return out.String(), err
}

func (d *demo) cmd(command string, out io.Writer) lab.Cmd {
	return lab.Cmd{
		Argv: []string{"sh", "-c", command}, Stdout: out, Stderr: out,
		Env: []string{"PATH=" + lab.Build() + ":/usr/sbin:/usr/bin:/sbin:/bin"},
	}
}

// background starts a command and waits until its output contains text.
func (d *demo) background(vm *lab.VM, command, text string) (*lab.Process, *output.Buffer, error) {
	fmt.Printf("%s# %s &\n", vm.Addr(), command)
	out := &output.Buffer{}
	p, err := vm.Start(d.cmd("exec "+command, out))
	if err != nil {
		return nil, nil, err
	}
	for !strings.Contains(out.String(), text) {
		select {
		case <-p.Done():
			return nil, nil, fmt.Errorf("%s has exited: %s", command, out.String())
		case <-d.ctx.Done():
			return nil, nil, d.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return p, out, nil
}

func (d *demo) run(vm *lab.VM, commands ...string) error {
	for _, command := range commands {
		if _, err := d.shell(vm, command); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) attach() error {
	d.say("Attach a volume of one host as a disk of the other")
	if err := d.run(d.storage, "krping-bridge create --store file:/srv/vol0.img --size 128MiB"); err != nil {
		return err
	}
	_, out, err := d.background(d.storage, "krping-bridge --listen "+d.storage.Addr()+" --store file:/srv/vol0.img", "listening on")
	if err != nil {
		return err
	}
	fmt.Print(out.String())
	return d.run(d.client, "krpingctl client --addr "+d.storage.Addr()+" --block vol0")
}

func (d *demo) writeTraced() error {
	d.say("Write 64 MiB of test data and trace every bio")
	summary, sum, err := d.background(d.client, "krpingctl trace /dev/krping0 --summary", "tracing")
	if err != nil {
		return err
	}
	lines, bios, err := d.background(d.client, "krpingctl trace /dev/krping0", "tracing")
	if err != nil {
		return err
	}
	err = d.run(d.client,
		"krpingctl write /dev/krping0 --size 1MiB --bs 4KiB --direct --name write_data",
		"krpingctl write /dev/krping0 --size 64MiB --bs 256KiB --direct --fsync")
	if err != nil {
		return err
	}
	for _, p := range []*lab.Process{lines, summary} {
		if err := p.Signal(unix.SIGINT); err != nil {
			return err
		}
		if err := p.Wait(d.ctx); err != nil {
			return err
		}
	}
	fmt.Println("the first bios:")
	head := strings.SplitN(withoutLog(bios.String()), "\n", 8)
	fmt.Println(strings.Join(head[:min(7, len(head))], "\n"))
	fmt.Println("all of them:")
	fmt.Print(withoutLog(sum.String()))
	return nil
}

// withoutLog drops log lines from a command's output.
func withoutLog(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.Contains(line, " INF ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func (d *demo) verify() error {
	d.say("Verify that both hosts have what was written")
	return d.run(d.client, "krpingctl verify /dev/krping0 --pattern random --seed 1 --size 64MiB")
}

func (d *demo) fileSystem() error {
	d.say("Make a file system and copy a tree of files to it")
	return d.run(d.client,
		"mkfs.ext4 -q /dev/krping0 && mkdir -p /mnt/krping && mount /dev/krping0 /mnt/krping",
		"cp -r /usr/include/linux /mnt/krping && find /mnt/krping -type f | wc -l && diff -r /usr/include/linux /mnt/krping/linux && echo the copies are equal",
		"umount /mnt/krping && fsck.ext4 -fn /dev/krping0",
		"krpingctl verify /dev/krping0")
}

func (d *demo) ping() error {
	d.say("Ping-pong with validated data")
	server, out, err := d.background(d.storage, "krpingctl server --addr "+d.storage.Addr()+" --port 9998 --validate", "")
	if err != nil {
		return err
	}
	if _, err := d.storage.Output(d.ctx, "until grep -q listen /proc/krping; do sleep 0.1; done; sleep 0.3"); err != nil {
		return err
	}
	if err := d.run(d.client, "krpingctl client --addr "+d.storage.Addr()+" --port 9998 --count 200 --size 4096 --validate"); err != nil {
		return err
	}
	if err := server.Wait(d.ctx); err != nil {
		return err
	}
	fmt.Print(d.storage.Addr(), ": ", out.String())
	return nil
}

func (d *demo) statistics() error {
	d.say("Statistics")
	return d.run(d.client, "krpingctl stat", "krpingctl dmesg | tail -n 3")
}

func (d *demo) bothEnds() error {
	d.say("Compare checksums of the whole volume on both hosts")
	here, err := d.shell(d.client, "sha256sum < /dev/krping0")
	if err != nil {
		return err
	}
	there, err := d.shell(d.storage, "sha256sum < /srv/vol0.img")
	if err != nil {
		return err
	}
	if here != there {
		return errors.New("the device and the store differ")
	}
	return nil
}

func (d *demo) detach() error {
	d.say("Detach the disk and unload the module")
	return d.run(d.client, "krpingctl stop vol0", "rmmod rdma_krping")
}
