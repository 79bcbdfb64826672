// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"
)

func monitorSocket(l *Lab, index int) string {
	return filepath.Join(l.dir, fmt.Sprintf("monitor%d", index))
}

// monitorLimit is how long QEMU may take to answer.
const monitorLimit = 30 * time.Second

// SetLink plugs in or pulls the VM's network cable. A guest without a carrier keeps its addresses and
// routes.
func (vm *VM) SetLink(up bool) error {
	if err := vm.ask("set_link", map[string]any{"name": "net", "up": up}); err != nil {
		return fmt.Errorf("set the link of VM %d: %w", vm.index+1, err)
	}
	return nil
}

// Suspend stops the VM's CPUs and clocks until Resume. Its peers keep running.
func (vm *VM) Suspend() error { return vm.must("stop") }

// Resume resumes a suspended VM.
func (vm *VM) Resume() error { return vm.must("cont") }

func (vm *VM) must(command string) error {
	if err := vm.ask(command, map[string]any{}); err != nil {
		return fmt.Errorf("VM %d: %w", vm.index+1, err)
	}
	return nil
}

// ask makes QEMU's monitor run a command (QEMU Machine Protocol).
func (vm *VM) ask(command string, arguments map[string]any) error {
	conn, err := net.DialTimeout("unix", vm.monitor, monitorLimit)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(monitorLimit)); err != nil {
		return err
	}
	answers := json.NewDecoder(conn)
	var greeting struct{ QMP *json.RawMessage }
	if err := answers.Decode(&greeting); err != nil || greeting.QMP == nil {
		return errors.Join(errors.New("the monitor does not greet"), err)
	}
	requests := json.NewEncoder(conn)
	for _, request := range []map[string]any{
		{"execute": "qmp_capabilities"},
		{"execute": command, "arguments": arguments},
	} {
		if err := requests.Encode(request); err != nil {
			return err
		}
		if err := answered(answers); err != nil {
			return fmt.Errorf("%s: %w", request["execute"], err)
		}
	}
	return nil
}

// answered reads the answer to a request, and skips events before it.
func answered(answers *json.Decoder) error {
	for {
		var answer struct {
			Return *json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		switch {
		case answer.Error != nil:
			return errors.New(answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
	}
}
