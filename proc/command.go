// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
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

// Command is a command of /proc/krping. A zero field is not written: the module's
// default holds.
type Command struct {
	Role     Role
	Addr     netip.Addr // with a zone if it is link-local
	Port     uint16
	Count    *uint32 // pings; 0: until it is interrupted
	Size     uint32  // bytes of a ping
	Timeout  time.Duration
	Verbose  bool
	Validate bool
	Block    string // name of a volume
	Queues   uint32
	Depth    uint32
	Force    bool
}

// maxCommand is the module's limit in bytes, with the end.
const maxCommand = 512

var volumeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,27}$`)

// Check returns what the module would refuse, and what would be right.
func (c Command) Check() error {
	block, ping := c.Block != "", c.Block == "" && c.Role != Stop
	switch {
	case c.Role != Client && c.Role != Server && c.Role != Stop:
		return fmt.Errorf("role %q: must be client, server or stop", c.Role)
	case c.Role == Stop && !block:
		return errors.New("stop needs the name of a volume")
	case c.Role != Stop && !c.Addr.IsValid():
		return errors.New("an address is needed")
	case c.Role == Stop && c.Addr.IsValid():
		return errors.New("stop takes no address")
	case block && !volumeName.MatchString(c.Block):
		return fmt.Errorf("volume name %q: must be 1 to 27 letters, digits, '.', '_' or '-'", c.Block)
	case c.Role == Server && block:
		return errors.New("block does not go with server: a volume is served by krping-bridge")
	case !ping && (c.Count != nil || c.Size != 0 || c.Verbose || c.Validate):
		return errors.New("count, size, verbose and validate are for pings, not for a volume")
	case c.Role == Server && c.Count != nil:
		return errors.New("count is the client's to say")
	case !(block && c.Role == Client) && (c.Queues != 0 || c.Depth != 0):
		return errors.New("queues and depth go with a client that has a volume")
	case c.Role != Stop && c.Force:
		return errors.New("force goes with stop")
	case c.Size > 1<<30:
		return fmt.Errorf("size %d: must be 1 to %d bytes", c.Size, 1<<30)
	case c.Queues > 64:
		return fmt.Errorf("queues %d: must be 1 to 64", c.Queues)
	case c.Depth > 1024:
		return fmt.Errorf("depth %d: must be 1 to 1024", c.Depth)
	}
	if seconds := c.Timeout.Seconds(); seconds != 0 && (seconds < 1 || seconds > 86400 || seconds != math.Trunc(seconds)) {
		return fmt.Errorf("timeout %v: must be whole seconds, 1 to 86400", c.Timeout)
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

func (c Command) text() string {
	options := []string{string(c.Role)}
	add := func(given bool, option string) {
		if given {
			options = append(options, option)
		}
	}
	number := func(name string, n uint32) { add(n != 0, name+"="+strconv.FormatUint(uint64(n), 10)) }
	addr := c.Addr.Unmap()
	add(addr.Is4(), "addr="+addr.String())
	add(addr.Is6(), "addr6="+addr.String())
	number("port", uint32(c.Port))
	if c.Count != nil {
		options = append(options, "count="+strconv.FormatUint(uint64(*c.Count), 10))
	}
	number("size", c.Size)
	number("timeout", uint32(c.Timeout/time.Second))
	add(c.Verbose, "verbose")
	add(c.Validate, "validate")
	add(c.Block != "", "block="+c.Block)
	number("queues", c.Queues)
	number("depth", c.Depth)
	add(c.Force, "force")
	return strings.Join(options, ",")
}
