// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"krping/test/lab"
)

// serve runs the host's commands. It returns only if the connection fails.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(port, lab.Ready); err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	session, err := yamux.Server(port, lab.YamuxConfig())
	if err != nil {
		return err
	}
	for {
		stream, err := session.Accept()
		if err != nil {
			return err
		}
		go execute(stream)
	}
}

func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		if name, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(name)) == lab.PortName {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no virtio port %s", lab.PortName)
}

// output sends one of the command's streams to the host.
type output struct {
	mu   *sync.Mutex
	to   lab.Stream
	make func([]byte) lab.FromGuest
}

func (o output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.to.Encode(o.make(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func execute(conn net.Conn) {
	defer conn.Close()
	stream := lab.NewStream(conn)
	var start lab.Request
	if err := stream.Decode(&start); err != nil || len(start.Argv) == 0 {
		return
	}
	var mu sync.Mutex
	cmd := exec.Command(start.Argv[0], start.Argv[1:]...)
	cmd.Env = append(os.Environ(), start.Env...)
	cmd.Dir = start.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // background processes may keep its output open
	cmd.Stdout = output{&mu, stream, func(p []byte) lab.FromGuest { return lab.FromGuest{Stdout: p} }}
	cmd.Stderr = output{&mu, stream, func(p []byte) lab.FromGuest { return lab.FromGuest{Stderr: p} }}
	ended := lab.FromGuest{Ended: true}
	if err := cmd.Start(); err != nil {
		ended.Code, ended.Err = 127, err.Error()
	} else {
		go passSignals(stream, cmd.Process.Pid)
		ended.Code = code(cmd.Wait())
	}
	mu.Lock()
	defer mu.Unlock()
	_ = stream.Encode(ended)
}

// passSignals forwards signals to the process group, and kills it when the stream ends.
func passSignals(stream lab.Stream, pid int) {
	for {
		var msg lab.ToGuest
		if err := stream.Decode(&msg); err != nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			return
		}
		_ = syscall.Kill(-pid, syscall.Signal(msg.Signal))
	}
}

func code(err error) int {
	var exit *exec.ExitError
	if !errors.As(err, &exit) { // no error, or ErrWaitDelay after success
		return 0
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
