// SPDX-License-Identifier: Apache-2.0

// Package nic sets up the network device of a lab guest: when it boots, and after a test has unplugged the
// device.
package nic

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Up gives eth0 the addresses 192.168.77.INDEX and fd77::INDEX and waits for its carrier. The MTU leaves room
// for RoCE packets with 4096 bytes of data.
func Up(index string) error {
	for _, line := range []string{
		"ip link set eth0 mtu 4300 up",
		"ip addr add 192.168.77." + index + "/24 dev eth0",
		"ip -6 addr add fd77::" + index + "/64 dev eth0 nodad",
	} {
		argv := strings.Fields(line)
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	for range 100 {
		if state, err := os.ReadFile("/sys/class/net/eth0/operstate"); err == nil && strings.TrimSpace(string(state)) == "up" {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("eth0 has no carrier after 5 s")
}
