// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

const eventGroup = "krping" // below events/ of tracefs

// attachModule follows the module's commands, if it is loaded and is not followed yet.
func (p *probe) attachModule() error {
	if len(p.module) > 0 {
		return nil
	}
	for _, event := range []struct {
		name    string
		program *ebpf.Program
	}{{"krping_cmd_done", p.objects.CmdDone}, {"krping_cmd_post", p.objects.CmdPost}} {
		format, err := readFormat(eventGroup, event.name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = checkFormat(format)
		}
		if err != nil {
			return fmt.Errorf("tracepoint %s:%s: %w", eventGroup, event.name, err)
		}
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: event.name, Program: event.program})
		if err != nil {
			return fmt.Errorf("attach to the tracepoint %s:%s: %w", eventGroup, event.name, err)
		}
		p.module = append(p.module, l)
	}
	return nil
}

// detachModule lets the module be unloaded.
func (p *probe) detachModule() error {
	var errs []error
	for _, l := range p.module {
		errs = append(errs, l.Close())
	}
	p.module = nil
	return errors.Join(errs...)
}

func readFormat(group, name string) (string, error) {
	var err error
	for _, mount := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		var data []byte
		if data, err = os.ReadFile(filepath.Join(mount, "events", group, name, "format")); err == nil {
			return string(data), nil
		}
	}
	return "", err
}

// field is the place of a member of an event.
type field struct{ offset, size int }

// entryHeader is what precedes the members in an event's format (common_type and so on), and
// not in its argument, which the program reads: else they are alike, as kmod/lib/trace.c asserts.
const entryHeader = 8

// cmdFields are the places of what is read of an event.
func cmdFields() map[string]field {
	var c bioKrpingCmd
	return map[string]field{
		"sector":  {entryHeader + int(unsafe.Offsetof(c.Sector)), int(unsafe.Sizeof(c.Sector))},
		"session": {entryHeader + int(unsafe.Offsetof(c.Session)), int(unsafe.Sizeof(c.Session))},
		"dev":     {entryHeader + int(unsafe.Offsetof(c.Dev)), int(unsafe.Sizeof(c.Dev))},
		"bytes":   {entryHeader + int(unsafe.Offsetof(c.Bytes)), int(unsafe.Sizeof(c.Bytes))},
		"crc":     {entryHeader + int(unsafe.Offsetof(c.Crc)), int(unsafe.Sizeof(c.Crc))},
		"status":  {entryHeader + int(unsafe.Offsetof(c.Status)), int(unsafe.Sizeof(c.Status))},
		"queue":   {entryHeader + int(unsafe.Offsetof(c.Queue)), int(unsafe.Sizeof(c.Queue))},
		"tag":     {entryHeader + int(unsafe.Offsetof(c.Tag)), int(unsafe.Sizeof(c.Tag))},
		"op":      {entryHeader + int(unsafe.Offsetof(c.Op)), int(unsafe.Sizeof(c.Op))},
		"flags":   {entryHeader + int(unsafe.Offsetof(c.Flags)), int(unsafe.Sizeof(c.Flags))},
	}
}

// checkFormat compares what the running module's event looks like with what is read of it.
// The form of the text: Documentation/trace/events.rst, "Event formats".
func checkFormat(format string) error {
	found := map[string]field{}
	for lines := bufio.NewScanner(strings.NewReader(format)); lines.Scan(); {
		name, f, ok := parseField(lines.Text())
		if ok {
			found[name] = f
		}
	}
	for name, want := range cmdFields() {
		if got, ok := found[name]; !ok || got != want {
			return fmt.Errorf("the loaded module is another version's: its member %s is not %d bytes at %d", name, want.size, want.offset)
		}
	}
	return nil
}

// parseField reads a line such as "field:u16 tag;	offset:38;	size:2;	signed:0;".
func parseField(line string) (name string, f field, ok bool) {
	var err error
	for part := range strings.SplitSeq(line, ";") {
		key, value, found := strings.Cut(strings.TrimSpace(part), ":")
		if !found {
			continue
		}
		switch key {
		case "field":
			name = value[strings.LastIndexByte(value, ' ')+1:]
		case "offset":
			f.offset, err = strconv.Atoi(value)
		case "size":
			f.size, err = strconv.Atoi(value)
		}
		if err != nil {
			return "", field{}, false
		}
	}
	return name, f, name != "" && f.size > 0
}
