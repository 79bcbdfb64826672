// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Role says what a command asks for.
type Role string

// Roles.
const (
	Client Role = "client" // ping/pong, or a block client if Block is set
	Server Role = "server"
	Stop   Role = "stop"
)

// A Test is what a ping/pong command runs.
type Test string

// Tests. The zero value of a Command is Ping.
const (
	Ping         Test = "ping"
	WriteLatency Test = "wlat"
	ReadLatency  Test = "rlat"
	Bandwidth    Test = "bw"
	FastRegister Test = "fr"
)

// Command is a command of /proc/krping. A zero field is not written: the module's
// default holds. Options says what each option means.
type Command struct {
	Role    Role
	Addr    netip.Addr // with a zone if it is link-local
	Port    uint16
	Timeout time.Duration // whole seconds

	// ping/pong
	Test         Test
	Count        *uint32 // 0: until it is interrupted
	Size         uint32  // bytes
	TOS          *uint8
	Verbose      bool
	Validate     bool
	MemMode      string // dma or reg
	ServerInv    bool
	ReadInv      bool
	LocalDMALkey bool
	Poll         bool
	Duplex       bool
	TxDepth      uint32
	QPs          uint32

	// block sessions
	Block  string // name of a volume
	Queues uint32
	Depth  uint32
	Force  bool
}

// maxCommand is the module's limit in bytes, with the end.
const maxCommand = 512

var volumeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,27}$`)

func (c Command) context() Context {
	switch {
	case c.Role == Stop:
		return BlockStop
	case c.Role == Server:
		return PingServer
	case c.Block != "":
		return BlockClient
	}
	return PingClient
}

func (c Command) test() Test {
	if c.Test == "" {
		return Ping
	}
	return c.Test
}

// Check returns what the module would refuse, and what would be right.
func (c Command) Check() error {
	switch {
	case c.Role != Client && c.Role != Server && c.Role != Stop:
		return fmt.Errorf("role %q: must be client, server or stop", c.Role)
	case !slices.Contains([]Test{Ping, WriteLatency, ReadLatency, Bandwidth, FastRegister}, c.test()):
		return fmt.Errorf("test %q: must be ping, wlat, rlat, bw or fr", c.Test)
	case c.Role == Stop && c.Block == "":
		return errors.New("stop needs the name of a volume")
	case c.Role != Stop && !c.Addr.IsValid():
		return errors.New("an address is needed")
	case c.Role == Server && c.Block != "":
		return errors.New("block does not go with a server: a volume is served by krping-bridge")
	case c.Block != "" && !volumeName.MatchString(c.Block):
		return fmt.Errorf("volume name %q: must be 1 to 27 letters, digits, '.', '_' or '-'", c.Block)
	case c.MemMode != "" && c.MemMode != "dma" && c.MemMode != "reg":
		return fmt.Errorf("mem_mode %q: must be dma or reg", c.MemMode)
	case (c.ServerInv || c.ReadInv) && c.MemMode != "reg":
		return errors.New("server_inv and read_inv need mem_mode=reg")
	}
	if seconds := c.Timeout.Seconds(); seconds != 0 && (seconds < 1 || seconds > 86400 || seconds != math.Trunc(seconds)) {
		return fmt.Errorf("timeout %v: must be whole seconds, 1 to 86400", c.Timeout)
	}
	settings := c.settings()
	for _, s := range settings {
		if err := option(s.name).check(s.value, c.context(), c.test()); err != nil {
			return err
		}
	}
	if n := len(c.text()); n >= maxCommand {
		return fmt.Errorf("command of %d bytes: must be less than %d", n, maxCommand)
	}
	return nil
}

// String returns the command as it is written to /proc/krping, if it is valid, else the
// reason in brackets.
func (c Command) String() string {
	if err := c.Check(); err != nil {
		return "(" + err.Error() + ")"
	}
	return c.text()
}

// A setting is an option that a command gives.
type setting struct{ name, value string }

func (c Command) settings() []setting {
	settings := []setting{{name: string(c.Role)}}
	flag := func(name string, given bool) {
		if given {
			settings = append(settings, setting{name: name})
		}
	}
	value := func(name, value string, given bool) {
		if given {
			settings = append(settings, setting{name, value})
		}
	}
	number := func(name string, n uint32) { value(name, strconv.FormatUint(uint64(n), 10), n != 0) }
	addr := c.Addr.Unmap()
	value("addr", addr.String(), addr.Is4())
	value("addr6", addr.String(), addr.Is6())
	number("port", uint32(c.Port))
	if c.Test != "" {
		flag(string(c.Test), c.Test != Ping)
	}
	if c.Count != nil {
		value("count", strconv.FormatUint(uint64(*c.Count), 10), true)
	}
	number("size", c.Size)
	number("timeout", uint32(c.Timeout/time.Second))
	if c.TOS != nil {
		value("tos", strconv.Itoa(int(*c.TOS)), true)
	}
	flag("verbose", c.Verbose)
	flag("validate", c.Validate)
	value("mem_mode", c.MemMode, c.MemMode != "")
	flag("server_inv", c.ServerInv)
	flag("read_inv", c.ReadInv)
	flag("local_dma_lkey", c.LocalDMALkey)
	flag("poll", c.Poll)
	flag("duplex", c.Duplex)
	number("txdepth", c.TxDepth)
	number("qps", c.QPs)
	value("block", c.Block, c.Block != "")
	number("queues", c.Queues)
	number("depth", c.Depth)
	flag("force", c.Force)
	return settings
}

func (c Command) text() string {
	var options []string
	for _, s := range c.settings() {
		if s.value == "" {
			options = append(options, s.name)
		} else {
			options = append(options, s.name+"="+s.value)
		}
	}
	return strings.Join(options, ",")
}
