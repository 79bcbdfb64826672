// SPDX-License-Identifier: Apache-2.0

package ladder

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"krping/agent/packets/dissect"
)

// Sizes and positions, in pixels.
const (
	svgWidth  = 960
	svgHost   = 108 // x of the host's line
	svgTarget = 930 // x of the target's line
	svgRow    = 30
	svgHead   = 58 // height of an I/O's title and the two names
	svgGap    = 24
)

const svgStyle = `text{font:13px ui-monospace,monospace;fill:#1f2328}
.title{font-weight:600}.name{fill:#59636e}.time{fill:#59636e;text-anchor:end}.lost{fill:#b35900}
line,path{stroke:#59636e;stroke-width:1.2;fill:none}.data{stroke:#0969da;stroke-width:2.4}
.tip{fill:#59636e;stroke:none}.datatip{fill:#0969da;stroke:none}.life{stroke:#d1d9e0;stroke-width:2}
@media (prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#f0f6fc}.name,.time{fill:#9198a1}.lost{fill:#f0883e}
line,path{stroke:#9198a1}.tip{fill:#9198a1}.data{stroke:#4493f8}.datatip{fill:#4493f8}.life{stroke:#3d444d}}`

// WriteSVG draws I/Os below each other as one SVG image. Arrows that carry data are blue and thick.
func WriteSVG(w io.Writer, ios []*dissect.IO) error {
	var b strings.Builder
	y := svgGap
	for _, o := range ios {
		y = svgIO(&b, o, y)
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">
<style>%s</style>
%s</svg>
`, svgWidth, max(y, svgGap), svgStyle, b.String())
	return err
}

// svgIO draws an I/O at y, and returns the y of the next one.
func svgIO(b *strings.Builder, o *dissect.IO, y int) int {
	svgText(b, "title", 12, y, title(o))
	if note := lossNote(o); note != "" {
		y += 18
		svgText(b, "lost", 12, y, note)
	}
	drawn := rungs(o)
	top, bottom := y+svgHead-18, y+svgHead+svgRow*len(drawn)-svgRow/2
	for _, end := range []struct {
		x          int
		name, side string
	}{{svgHost, "host " + o.Host.String(), "start"}, {svgTarget, "target " + o.Target.String(), "end"}} {
		fmt.Fprintf(b, `<text class="name" x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", end.x, top-8, end.side, escape(end.name))
		fmt.Fprintf(b, `<line class="life" x1="%d" y1="%d" x2="%[1]d" y2="%d"/>`+"\n", end.x, top, bottom)
	}
	for i, r := range drawn {
		at := y + svgHead + i*svgRow
		svgText(b, "time", svgHost-10, at+4, fmt.Sprintf("%.3f ms", ms(r.at)))
		svgArrow(b, r, at)
	}
	return bottom + svgGap + svgRow/2
}

const svgLetters = 102 // characters that fit above an arrow

func svgArrow(b *strings.Builder, r rung, y int) {
	class := ""
	if r.bytes > 0 {
		class = "data"
	}
	from, to, back := svgHost, svgTarget, -8
	if !r.fromHost {
		from, to, back = svgTarget, svgHost, 8
	}
	text := r.text()
	if len(text) > svgLetters {
		text = text[:svgLetters-3] + "..."
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (svgHost+svgTarget)/2, y-5, escape(text))
	fmt.Fprintf(b, `<line class="%s" x1="%d" y1="%d" x2="%d" y2="%[3]d"/><path class="%[1]stip" d="M%[5]d %[3]dl%[6]d -4v8z"/>`+"\n",
		class, from, y, to+back, to, back)
}

func svgText(b *strings.Builder, class string, x, y int, text string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, escape(text))
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder does not fail
	return b.String()
}
