// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Thread is a running ping/pong thread: a line of /proc/krping, with krping's columns.
type Thread struct {
	Number     int    `json:"number"`
	Device     string `json:"device"` // RDMA device; "" for a listening server
	SendBytes  uint64 `json:"send_bytes"`
	SendMsgs   uint64 `json:"send_msgs"`
	RecvBytes  uint64 `json:"recv_bytes"`
	RecvMsgs   uint64 `json:"recv_msgs"`
	WriteBytes uint64 `json:"write_bytes"`
	WriteMsgs  uint64 `json:"write_msgs"`
	ReadBytes  uint64 `json:"read_bytes"`
	ReadMsgs   uint64 `json:"read_msgs"`
}

// Threads returns the running ping/pong threads.
func (f FS) Threads() ([]Thread, error) {
	data, err := f.read("krping")
	if err != nil {
		return nil, err
	}
	return ParseThreads(string(data))
}

// ParseThreads parses /proc/krping.
func ParseThreads(text string) ([]Thread, error) {
	var threads []Thread
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		t, err := parseThread(line)
		if err != nil {
			return nil, fmt.Errorf("thread %.100q: %w", line, err)
		}
		threads = append(threads, t)
	}
	return threads, nil
}

func parseThread(line string) (Thread, error) {
	fields := strings.Fields(line)
	if len(fields) == 2 && fields[1] == "listen" {
		n, err := strconv.Atoi(fields[0])
		return Thread{Number: n}, err
	}
	if len(fields) != 9 {
		return Thread{}, fmt.Errorf("has %d columns, not 9", len(fields))
	}
	number, device, found := strings.Cut(fields[0], "-")
	n, err := strconv.Atoi(number)
	if err != nil || !found || device == "" {
		return Thread{}, errors.New("first column is not <n>-<device>")
	}
	t := Thread{Number: n, Device: device}
	for i, to := range []*uint64{
		&t.SendBytes, &t.SendMsgs, &t.RecvBytes, &t.RecvMsgs,
		&t.WriteBytes, &t.WriteMsgs, &t.ReadBytes, &t.ReadMsgs,
	} {
		if *to, err = strconv.ParseUint(fields[i+1], 10, 64); err != nil {
			return Thread{}, fmt.Errorf("column %d: %w", i+2, err)
		}
	}
	return t, nil
}
