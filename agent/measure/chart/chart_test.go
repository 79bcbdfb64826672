// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// elements returns how many elements of each name the picture has.
func elements(t *testing.T, svg []byte) map[string]int {
	t.Helper()
	n := map[string]int{}
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
		if start, ok := token.(xml.StartElement); ok {
			n[start.Name.Local]++
		}
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	l := Lines{Title: "a < b", X: "connections", Y: "Gbit/s", Series: []Series{
		{Name: "4096 bytes", X: []float64{1, 10, 1000}, Y: []float64{0.5, 9.9, 3}}, {Name: "64 bytes", X: []float64{1}, Y: []float64{0}},
	}}
	if err := l.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	if n := elements(t, out.Bytes()); n["polyline"] != 2 || n["circle"] != 4 || n["rect"] != 2 {
		t.Errorf("elements: %v", n)
	}
	for _, want := range []string{"a &lt; b", ">1000<", ">10<", ">4096 bytes<"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
		t.Errorf("a position is no number:\n%s", out.String())
	}
	for name, bad := range map[string]Series{"X of 0": {X: []float64{0}, Y: []float64{1}}, "no Y": {X: []float64{1}}, "nothing": {}} {
		if err := (Lines{Series: []Series{bad}}).WriteSVG(io.Discard); err == nil {
			t.Errorf("%s: drawn", name)
		}
	}
}

func TestBars(t *testing.T) {
	var out bytes.Buffer
	b := Bars{Title: "t", Y: "times", Labels: []string{"read", "write"}, Line: 1, Series: []Series{{Name: "krping", Y: []float64{1.5, math.NaN()}}, {Name: "nbd", Y: []float64{0.2, 1}}}}
	if err := b.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	if n := elements(t, out.Bytes()); n["rect"] != 2+3 {
		t.Errorf("elements: %v, want 2 of the legend and 3 bars", n)
	}
	b.Series[0].Y = nil
	if err := b.WriteSVG(io.Discard); err == nil {
		t.Error("values are missing: drawn")
	}
}

// The ticks are round numbers, 4 to 10 of them.
func TestTicks(t *testing.T) {
	for _, high := range []float64{0.0003, 0.9, 1, 4.2, 10, 99, 120000} {
		step := niceStep(high)
		if n := high / step; n < 4 || n > 10.0001 {
			t.Errorf("up to %v: %v ticks", high, n)
		}
	}
}
