// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Role is the first option of a command, which says what it does.
type Role string

// Roles.
const (
	Client Role = "client" // ping/pong, or a block client if Block is set
	Server Role = "server" // ping/pong, or a block server if Block is set
	Stop   Role = "stop"
)

// Test is what a ping/pong command measures.
type Test string

// Tests. The zero value of a Command is Ping.
const (
	Ping         Test = "ping"
	WriteLatency Test = "wlat"
	ReadLatency  Test = "rlat"
	Bandwidth    Test = "bw"
	FastRegister Test = "fr"
	Verbs        Test = "verbs" // a client also has Verb and Measure
)

// Command is a command of /proc/krping. A zero field is not written: the module uses its default.
// Options documents each option.
type Command struct {
	Role    Role
	Addr    netip.Addr // with a zone if link-local
	Port    uint16
	Source  string        // address of this host to connect from, or a network interface that has one; "": any
	Timeout time.Duration // whole seconds

	// ping/pong
	Test         Test
	Count        *uint32 // 0: until interrupted
	Size         uint32  // bytes
	TOS          *uint8
	Verbose      bool
	Validate     bool
	MemMode      string // dma or reg; "": reg with ServerInv or ReadInv, else dma
	ServerInv    bool
	ReadInv      bool
	LocalDMALkey bool
	Poll         bool
	Duplex       bool
	TxDepth      uint32
	QPs          uint32

	// Verbs
	Verb     string        // of a client: send, write, write_imm, read, fetch_add or cmp_swap
	Measure  string        // of a client: bw or lat
	QPType   string        // rc, uc or ud
	Duration time.Duration // whole seconds
	RxDepth  uint32
	SRQ      bool
	Signal   uint32
	Inline   uint32 // bytes
	MTU      uint32 // bytes
	Reads    uint32
	Rate     uint32 // messages a second

	// block sessions
	Block      string // name of a volume
	Queues     uint32
	PollQueues uint32
	Depth      uint32
	FastFail   time.Duration // whole seconds
	Heartbeat  *uint32       // seconds
	Mode       string        // remote or tap
	Backing    string        // /dev/NAME or ram:SIZE
	Comm       string        // tap: name of the processes to forward
	PID        uint32        // tap: process to forward
	Op         string        // tap: operations to forward, joined by '+'
	Sectors    string        // tap: FIRST-LAST to forward
	Writeback  bool
	ReadOnly   bool
	BlockSize  uint32 // bytes
	Key        string // description of a key in a keyring: krping:NAME
	KeyFile    string // instead of Key: the file that has it
	Allow      string // of a server: addresses joined by '+'
	Target     bool   // Stop: the served volume of that name
	Force      bool
	UUID       string // of the volume: what a client expects, what a served volume has
	Shared     bool   // of a served volume: any number of clients may write
	TakeOver   bool   // of a client: fence and replace the one that writes
}

// maxCommand is the module's limit in bytes, including the terminating zero.
const maxCommand = 512

func (c Command) context() Context {
	switch {
	case c.Role == Stop:
		return BlockStop
	case c.Role == Server && c.Block != "":
		return BlockServer
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

// Check returns an error if the module would refuse the command. It says what would be right.
func (c Command) Check() error {
	switch {
	case c.Role != Client && c.Role != Server && c.Role != Stop:
		return fmt.Errorf("role %q: must be client, server or stop", c.Role)
	case !slices.Contains([]Test{Ping, WriteLatency, ReadLatency, Bandwidth, FastRegister, Verbs}, c.test()):
		return fmt.Errorf("test %q: must be ping, wlat, rlat, bw, fr or verbs", c.Test)
	case !slices.Contains([]string{"", "bw", "lat"}, c.Measure):
		return fmt.Errorf("measure %q: must be bw or lat", c.Measure)
	case c.Role == Stop && c.Block == "":
		return errors.New("stop needs the name of a volume")
	case c.Role != Stop && !c.Addr.IsValid():
		return errors.New("an address is needed")
	case (c.ServerInv || c.ReadInv) && c.MemMode == "dma":
		return errors.New("server_inv and read_inv cannot be used with mem_mode=dma")
	}
	if seconds := c.Timeout.Seconds(); seconds != 0 && (seconds < 1 || seconds > 86400 || seconds != math.Trunc(seconds)) {
		return fmt.Errorf("timeout %v: must be whole seconds, 1 to 86400", c.Timeout)
	}
	for _, s := range c.settings() {
		if err := option(s.name).check(s.value, c.context(), c.test()); err != nil {
			return err
		}
	}
	if err := c.checkBlock(); err != nil {
		return err
	}
	if err := c.checkVerbs(); err != nil {
		return err
	}
	if source, err := netip.ParseAddr(c.Source); err == nil && source.Unmap().Is4() != c.Addr.Unmap().Is4() {
		return fmt.Errorf("source %v and address %v: must both be IPv4 or both IPv6", source, c.Addr)
	}
	if c.Key != "" && c.KeyFile != "" {
		return errors.New("key and key_file: give one of them")
	}
	if n := len(c.text()); n >= maxCommand {
		return fmt.Errorf("command of %d bytes: must be less than %d", n, maxCommand)
	}
	return nil
}

// checkBlock checks the options of block commands.
func (c Command) checkBlock() error {
	tap := c.Comm != "" || c.PID != 0 || c.Op != "" || c.Sectors != ""
	client := c.context() == BlockClient
	switch {
	case client && tap && c.Mode != "tap":
		return errors.New("comm, pid, op and sectors need mode tap")
	case client && (c.Mode == "tap") != (c.Backing != ""):
		return errors.New("backing must be given with mode tap, and only then: /dev/NAME or ram:SIZE")
	case client && c.PollQueues != 0 && c.Mode == "tap":
		return errors.New("poll_queues cannot be used with mode tap, whose disk is not polled")
	case c.Queues+c.PollQueues > 64:
		return fmt.Errorf("queues %d and poll_queues %d: must be 64 together at most", c.Queues, c.PollQueues)
	case client && c.ReadOnly && (c.Mode == "tap" || c.TakeOver):
		return errors.New("read_only cannot be used with mode tap or take_over, which write")
	case c.context() == BlockServer && c.Backing == "":
		return errors.New("a block server needs a backing: /dev/NAME or ram:SIZE")
	case c.BlockSize != 0 && c.BlockSize != 512 && c.BlockSize != 4096:
		return fmt.Errorf("block_size %d: must be 512 or 4096", c.BlockSize)
	case c.Target && c.Force:
		return errors.New("force cannot be used with target")
	}
	if seconds := c.FastFail.Seconds(); seconds != 0 && (seconds < 1 || seconds > 86400 || seconds != math.Trunc(seconds)) {
		return fmt.Errorf("fast_fail %v: must be whole seconds, 1 to 86400", c.FastFail)
	}
	return nil
}

// String returns the command as written to /proc/krping; for an invalid one, the error in
// parentheses.
func (c Command) String() string {
	if err := c.Check(); err != nil {
		return "(" + err.Error() + ")"
	}
	return c.text()
}

// keyName returns the description of the key. A key from a file is put into a keyring under the
// volume's name.
func (c Command) keyName() string {
	if c.KeyFile != "" {
		return "krping:" + c.Block
	}
	return c.Key
}

// setting is an option of a command with its value.
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
		flag(string(c.Test), c.Test != Ping && (c.Test != Verbs || c.Role != Client))
	}
	value("verb", c.Verb, c.Verb != "")
	flag(c.Measure, c.Measure != "")
	value("qp", c.QPType, c.QPType != "")
	number("duration", uint32(c.Duration/time.Second))
	number("rxdepth", c.RxDepth)
	flag("srq", c.SRQ)
	number("signal", c.Signal)
	number("inline", c.Inline)
	number("mtu", c.MTU)
	number("reads", c.Reads)
	number("rate", c.Rate)
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
	number("fast_fail", uint32(c.FastFail/time.Second))
	if c.Heartbeat != nil {
		value("heartbeat", strconv.FormatUint(uint64(*c.Heartbeat), 10), true)
	}
	value("mode", c.Mode, c.Mode != "")
	value("backing", c.Backing, c.Backing != "")
	value("comm", c.Comm, c.Comm != "")
	number("pid", c.PID)
	value("op", c.Op, c.Op != "")
	value("sectors", c.Sectors, c.Sectors != "")
	flag("writeback", c.Writeback)
	flag("read_only", c.ReadOnly)
	number("block_size", c.BlockSize)
	value("key", c.keyName(), c.keyName() != "")
	value("allow", c.Allow, c.Allow != "")
	flag("target", c.Target)
	flag("force", c.Force)
	value("uuid", c.UUID, c.UUID != "")
	flag("shared", c.Shared)
	flag("take_over", c.TakeOver)
	value("source", c.Source, c.Source != "")
	number("poll_queues", c.PollQueues)
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
