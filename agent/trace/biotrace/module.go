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

const eventGroup = "krping" // in events/ of tracefs

// attachModule attaches to the module's events, if it is loaded and they are not attached yet.
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

// detachModule detaches from the module's events, so that it can be unloaded.
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

// field is the location of a member of an event, in bytes.
type field struct{ offset, size int }

// cmdFields returns the fields that the program reads, in its argument. An event's format has common_type
// and so on before them, padded as the first of them, sector, needs it; the rest of the layout is the same,
// which kmod/lib/trace.c asserts.
func cmdFields() map[string]field {
	var c bioKrpingCmd
	return map[string]field{
		"sector":  {int(unsafe.Offsetof(c.Sector)), int(unsafe.Sizeof(c.Sector))},
		"session": {int(unsafe.Offsetof(c.Session)), int(unsafe.Sizeof(c.Session))},
		"dev":     {int(unsafe.Offsetof(c.Dev)), int(unsafe.Sizeof(c.Dev))},
		"bytes":   {int(unsafe.Offsetof(c.Bytes)), int(unsafe.Sizeof(c.Bytes))},
		"crc":     {int(unsafe.Offsetof(c.Crc)), int(unsafe.Sizeof(c.Crc))},
		"status":  {int(unsafe.Offsetof(c.Status)), int(unsafe.Sizeof(c.Status))},
		"queue":   {int(unsafe.Offsetof(c.Queue)), int(unsafe.Sizeof(c.Queue))},
		"tag":     {int(unsafe.Offsetof(c.Tag)), int(unsafe.Sizeof(c.Tag))},
		"op":      {int(unsafe.Offsetof(c.Op)), int(unsafe.Sizeof(c.Op))},
		"flags":   {int(unsafe.Offsetof(c.Flags)), int(unsafe.Sizeof(c.Flags))},
	}
}

// checkFormat returns an error if the loaded module's event differs from what the program reads. The
// text is described in Documentation/trace/events.rst, "Event formats".
func checkFormat(format string) error {
	found := map[string]field{}
	for lines := bufio.NewScanner(strings.NewReader(format)); lines.Scan(); {
		name, f, ok := parseField(lines.Text())
		if ok {
			found[name] = f
		}
	}
	header := found["sector"].offset
	for name, want := range cmdFields() {
		want.offset += header
		if got, ok := found[name]; !ok || got != want {
			return fmt.Errorf("the loaded module has another version: field %s is not %d bytes at offset %d", name, want.size, want.offset)
		}
	}
	return nil
}

// parseField parses a line such as "field:u16 tag;	offset:38;	size:2;	signed:0;".
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
