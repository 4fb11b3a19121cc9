package bench

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// bar is one row of a chart: parts side by side, and a bracket over the spread.
type bar struct {
	name, about string
	parts       []float64
	spread      Spread
	fill        int // of a single part: 0 ours, 1 a floor
	label       string
}

var fills = []string{"var(--a)", "var(--b)", "var(--c)"}

// barChart draws horizontal bars, so that names can be read. Parts carry a pattern beside their colour.
func barChart(bars []bar, legend []string, title string) template.HTML {
	if len(bars) == 0 {
		return ""
	}
	const width, left, right, row = 920, 290, 260, 26
	most := 0.0
	for _, b := range bars {
		most = max(most, sum(b.parts), b.spread.High)
	}
	top := 8
	if legend != nil {
		top = 36
	}
	scale := float64(width-left-right) / max(most, 1e-9)
	var s strings.Builder
	fmt.Fprintf(&s, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, top+row*len(bars)+8, html.EscapeString(title))
	s.WriteString(`<defs><pattern id="p1" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" fill="var(--page)" opacity=".55"/></pattern>` +
		`<pattern id="p2" width="6" height="6" patternUnits="userSpaceOnUse"><circle cx="3" cy="3" r="1.4" fill="var(--page)" opacity=".7"/></pattern></defs>`)
	box := func(x, y, w float64, h int, part int, floor bool) {
		fill := fills[part]
		if floor {
			fill = "var(--floor)"
		}
		fmt.Fprintf(&s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"/>`, x, y, w, h, fill)
		if part > 0 {
			fmt.Fprintf(&s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="url(#p%d)"/>`, x, y, w, h, part)
		}
	}
	at := float64(left)
	for i, name := range legend {
		box(at, 8, 14, 14, i, false)
		fmt.Fprintf(&s, `<text x="%.1f" y="20">%s</text>`, at+20, html.EscapeString(name))
		at += 40 + 7.2*float64(len(name))
	}
	for i, b := range bars {
		y := float64(top + row*i)
		name, class := b.name, ""
		if name == "" {
			name, class = b.about, ` class="faint"`
		}
		fmt.Fprintf(&s, `<text x="%d" y="%.1f" text-anchor="end"%s>%s</text>`, left-10, y+17, class, html.EscapeString(name))
		x := float64(left)
		for part, v := range b.parts {
			box(x, y+4, v*scale, row-8, part, b.fill == 1)
			x += v * scale
		}
		end := x
		if b.spread.High > b.spread.Low {
			from, to, mid := float64(left)+b.spread.Low*scale, float64(left)+b.spread.High*scale, y+row/2
			fmt.Fprintf(&s, `<path d="M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8" stroke="var(--text)" stroke-width="1.5" fill="none"/>`, from, mid, to, from, mid-4, to, mid-4)
			end = max(end, to)
		}
		fmt.Fprintf(&s, `<text x="%.1f" y="%.1f"%s>%s</text>`, end+8, y+17, class, html.EscapeString(b.label))
	}
	s.WriteString(`</svg>`)
	return template.HTML(s.String())
}

// line is a latency curve over curvePercentiles, in milliseconds.
type line struct {
	name string
	ms   []float64
}

// dashes tell lines apart without colour.
var dashes = []string{"", "8 4", "2 3", "10 3 2 3", "1 5", "14 4"}

// curveChart draws latency over the share of requests: the axis stretches towards 100 %, where each tick is a tenth of
// the requests that are left.
func curveChart(lines []line) template.HTML {
	if len(lines) == 0 {
		return ""
	}
	const width, height, left, right, top, bottom = 920, 400, 76, 40, 56, 40
	const nines = 4.0 // the axis ends at 99.99 %
	low, high := math.Inf(1), 0.0
	for _, l := range lines {
		for _, v := range l.ms {
			low, high = min(low, max(v, 0.01)), max(high, v)
		}
	}
	bottomDecade, topDecade := math.Floor(math.Log10(low)), math.Ceil(math.Log10(max(high, low*1.01)))
	x := func(percentile float64) float64 {
		n := nines
		if percentile < 99.99 {
			n = -math.Log10(1 - percentile/100)
		}
		return left + n/nines*(width-left-right)
	}
	y := func(ms float64) float64 {
		return top + (topDecade-math.Log10(max(ms, 0.01)))/max(1, topDecade-bottomDecade)*(height-top-bottom)
	}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg viewBox="0 0 %d %d" role="img" aria-label="Latency by share of requests">`, width, height)
	for d := bottomDecade; d <= topDecade; d++ {
		at := y(math.Pow(10, d))
		fmt.Fprintf(&s, `<path d="M%d %.1fH%d" stroke="var(--rule)"/><text x="%d" y="%.1f" text-anchor="end" class="faint">%g ms</text>`, left, at, width-right, left-8, at+4, math.Pow(10, d))
	}
	for _, p := range []float64{0, 50, 90, 99, 99.9, 99.99} {
		fmt.Fprintf(&s, `<path d="M%.1f %dV%d" stroke="var(--rule)"/><text x="%.1f" y="%d" text-anchor="middle" class="faint">%g %%</text>`, x(p), top, height-bottom, x(p), height-bottom+20, p)
	}
	colours := []string{"var(--a)", "var(--b)", "var(--c)", "var(--d)"}
	at := float64(left)
	for i, l := range lines {
		colour, dash := colours[i%len(colours)], dashes[i%len(dashes)]
		var path strings.Builder
		for n, ms := range l.ms {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(n, 1)], x(curvePercentiles[n]), y(ms))
		}
		fmt.Fprintf(&s, `<path d="%s" fill="none" stroke="%s" stroke-width="2.5" stroke-dasharray="%s"/>`, path.String(), colour, dash)
		row := 14.0
		if n := 48 + 7.2*float64(len(l.name)); at+n > width {
			at, row = left, 32
		}
		fmt.Fprintf(&s, `<path d="M%.1f %.1fh30" stroke="%s" stroke-width="2.5" stroke-dasharray="%s"/><text x="%.1f" y="%.1f">%s</text>`, at, row, colour, dash, at+36, row+4, html.EscapeString(l.name))
		at += 56 + 7.2*float64(len(l.name))
	}
	s.WriteString(`</svg>`)
	return template.HTML(s.String())
}
