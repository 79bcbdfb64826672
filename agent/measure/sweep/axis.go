// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"krping/bridge/input"
	"krping/proc"
)

// Axis is an option with the values that it takes in turn.
type Axis struct {
	Option string
	Values []string
}

// Setting is an option with its value at a point.
type Setting struct{ Option, Value string }

// option is what an axis may vary. Its field is a number, a word, or a bool, which is on or off.
type option struct {
	name     string
	field    func(*Point) any
	min, max uint32 // of a number that is no option of the module
}

// maxThreads and maxConnections are the module's limits.
const (
	maxThreads     = 4096
	maxConnections = 1024 // of a thread
)

var options = []option{
	{name: "size", field: func(p *Point) any { return &p.Command.Size }},
	{name: "threads", field: func(p *Point) any { return &p.Threads }, min: 1, max: maxThreads},
	{name: "connections", field: func(p *Point) any { return &p.Connections }, min: 1, max: maxConnections},
	{name: "verb", field: func(p *Point) any { return &p.Command.Verb }},
	{name: "measure", field: func(p *Point) any { return &p.Command.Measure }},
	{name: "qp", field: func(p *Point) any { return &p.Command.QPType }},
	{name: "txdepth", field: func(p *Point) any { return &p.Command.TxDepth }},
	{name: "rxdepth", field: func(p *Point) any { return &p.Command.RxDepth }},
	{name: "srq", field: func(p *Point) any { return &p.Command.SRQ }},
	{name: "signal", field: func(p *Point) any { return &p.Command.Signal }},
	{name: "inline", field: func(p *Point) any { return &p.Command.Inline }},
	{name: "mtu", field: func(p *Point) any { return &p.Command.MTU }},
	{name: "reads", field: func(p *Point) any { return &p.Command.Reads }},
	{name: "rate", field: func(p *Point) any { return &p.Command.Rate }},
	{name: "poll", field: func(p *Point) any { return &p.Command.Poll }},
	{name: "validate", field: func(p *Point) any { return &p.Command.Validate }},
}

func optionOf(name string) (option, bool) {
	i := slices.IndexFunc(options, func(o option) bool { return o.name == name })
	if i < 0 {
		return option{}, false
	}
	return options[i], true
}

// limits returns the range of a number.
func (o option) limits() (low, high uint32) {
	for _, module := range proc.Options {
		if module.Name == o.name {
			return module.Min, module.Max
		}
	}
	return o.min, o.max
}

var (
	errSize = errors.New("must be sizes of 1 byte to 1 GiB, such as 64,4k,64k")
	errFlag = errors.New("must be on or off, or both, as in off,on")
)

// parse returns a value as a Setting has it: a size in bytes, on or off. Words are checked with the command.
func (o option) parse(text string) (string, error) {
	switch o.field(&Point{}).(type) {
	case *string:
		return text, nil
	case *bool:
		switch text {
		case "on", "true":
			return "on", nil
		case "off", "false":
			return "off", nil
		}
		return "", errFlag
	}
	low, high := o.limits()
	if o.name == "size" {
		n, err := input.Size(text)
		if err != nil || n < int64(low) || n > int64(high) {
			return "", errSize
		}
		return strconv.FormatInt(n, 10), nil
	}
	n, err := strconv.ParseUint(text, 0, 64)
	switch {
	case err != nil:
		return "", errors.New("must be whole numbers, separated by commas")
	case n < uint64(low) || n > uint64(high):
		return "", fmt.Errorf("must be %d to %d", low, high)
	}
	return strconv.FormatUint(n, 10), nil
}

// NewAxis returns an axis of an option whose values are written as people do: 4k is a size, true is on. The
// error says what values must be.
func NewAxis(name string, values ...string) (Axis, error) {
	o, found := optionOf(name)
	if !found {
		return Axis{}, fmt.Errorf("%s: is no option of a sweep", name)
	}
	axis := Axis{Option: name}
	for _, text := range values {
		value, err := o.parse(text)
		if err != nil {
			return Axis{}, err
		}
		axis.Values = append(axis.Values, value)
	}
	return axis, nil
}

// set sets the field of an option at a point.
func (p *Point) set(s Setting) error {
	o, found := optionOf(s.Option)
	if !found {
		return fmt.Errorf("%s: is no option of a sweep", s.Option)
	}
	value, err := o.parse(s.Value)
	if err != nil {
		return fmt.Errorf("%s %s: %w", s.Option, s.Value, err)
	}
	switch field := o.field(p).(type) {
	case *string:
		*field = value
	case *bool:
		*field = value == "on"
	case *uint32:
		n, _ := strconv.ParseUint(value, 10, 32) // in range
		*field = uint32(n)
	case *int:
		*field, _ = strconv.Atoi(value) // in range
	}
	p.Settings = append(p.Settings, Setting{s.Option, value})
	return nil
}

// value returns the value of an option, "" if no axis of the point has it.
func (p Point) value(name string) string {
	for _, s := range p.Settings {
		if s.Option == name {
			return s.Value
		}
	}
	return ""
}

func (o option) isNumber() bool {
	switch o.field(&Point{}).(type) {
	case *uint32, *int:
		return true
	}
	return false
}

// String returns the setting as in the legend of a chart.
func (s Setting) String() string {
	switch s.Option {
	case "size":
		return s.Value + " bytes"
	case "connections":
		return s.Value + " connections per thread"
	case "threads":
		return s.Value + " threads"
	}
	return s.Option + " " + s.Value
}
