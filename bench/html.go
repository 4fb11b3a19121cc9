package bench

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
)

// WriteHTML writes the report as one page that needs nothing else: its charts are SVG inside it, light or dark as the
// reader's system is. Series differ in colour (a palette for all kinds of colour vision), pattern and label.
func WriteHTML(w io.Writer, r *Report) error {
	var rates, costs []bar
	var lines []line
	lastFloor := ""
	for _, res := range r.Results {
		if res.Latency != nil {
			lines = append(lines, line{res.Name, res.Latency.Curve})
			continue // a paced run's rate and cost say nothing: it was told how fast to go
		}
		note := ""
		if res.Floor != nil && res.Floor.Rate.Median > 0 {
			note = fmt.Sprintf(", %s of its floor", figure(res.Floor.Ratio.Median))
			if res.Floor.Name != lastFloor { // one for several paths is drawn once
				lastFloor = res.Floor.Name
				rates = append(rates, bar{"", "floor: " + res.Floor.Name, []float64{res.Floor.Rate.Median}, res.Floor.Rate, 1, thousands(res.Floor.Rate.Median)})
				costs = append(costs, bar{"", "floor: " + res.Floor.Name, parts(res.Floor.CPU), Spread{}, 0, figure(sum(parts(res.Floor.CPU)))})
			}
		}
		label := thousands(res.Rate.Median) + note
		if res.Books.Err() != nil {
			label = "void: the books do not balance"
		}
		rates = append(rates, bar{res.Name, res.Unit + "s a second", []float64{res.Rate.Median}, res.Rate, 0, label})
		costs = append(costs, bar{res.Name, "us for each " + res.Unit, parts(res.CPU), Spread{}, 0, figure(sum(parts(res.CPU)))})
	}
	return page.Execute(w, map[string]any{
		"R": r, "Rates": barChart(rates, nil, "Rates beside their floors"), "Costs": barChart(costs, []string{"program", "PostgreSQL", "generator and receiver"}, "CPU per unit"),
		"Latencies": curveChart(lines), "Settings": settingsLine(r.Machine), "Ok": r.Err() == nil, "Missed": len(r.Missed()),
	})
}

// WriteSweepHTML writes a sweep in the same manner.
func WriteSweepHTML(w io.Writer, s *Sweep) error {
	var rates, costs []bar
	var lines []line
	for _, p := range s.Points {
		name, fill := s.label(p.Settings), 1
		if s.Knee != nil && maps.Equal(s.Knee.Settings, p.Settings) {
			name, fill = "knee: "+name, 0
		}
		label := thousands(p.Rate.Median)
		if p.Latency != nil {
			label += fmt.Sprintf(", p99 %s ms at %s/s", figure(p.Latency.P99), thousands(p.LatencyRate))
			if len(lines) < len(dashes) {
				lines = append(lines, line{s.label(p.Settings), p.Latency.Curve})
			}
		}
		rates = append(rates, bar{name, "", []float64{p.Rate.Median}, p.Rate, fill, label})
		costs = append(costs, bar{name, "", parts(p.CPU), Spread{}, 0, figure(sum(parts(p.CPU)))})
	}
	return page.Execute(w, map[string]any{
		"S": s, "R": &Report{Command: "pipeline bench " + s.Kind, Machine: s.Machine}, "Rates": barChart(rates, nil, "Rate by settings"), "Costs": barChart(costs, []string{"program", "PostgreSQL", "generator and receiver"}, "CPU per unit"),
		"Latencies": curveChart(lines), "Settings": settingsLine(s.Machine), "Ok": s.Err() == nil,
	})
}

func parts(c CPU) []float64 { return []float64{c.Program, c.PostgreSQL, c.Generator} }

func sum(v []float64) (total float64) {
	for _, x := range v {
		total += x
	}
	return total
}

func settingsLine(m Machine) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		all = append(all, name+"="+m.Settings[name])
	}
	return strings.Join(all, ", ")
}

var page = template.Must(template.New("report").Funcs(template.FuncMap{"figure": figure, "thousands": thousands}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.R.Command}}</title>
<style>
:root { color-scheme: light dark; --page: #ffffff; --text: #1a1a1a; --faint: #5c5c5c; --rule: #d4d4d4;
  --a: #0067a8; --b: #c65300; --c: #00795c; --d: #8a4f7d; --floor: #9a9a9a; --bad: #a40000; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --text: #ececec; --faint: #a9adb3; --rule: #3a3f45;
  --a: #56b4e9; --b: #e69f00; --c: #34c79c; --d: #d79bc8; --floor: #7f858c; --bad: #ff8a80; } }
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
p.faint, td.faint { color: var(--faint); font-size: .875rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font: 13px system-ui, sans-serif; } svg text.faint { fill: var(--faint); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; } td, th { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.bad { color: var(--bad); font-weight: 600; }
</style></head><body>
<h1>{{.R.Command}}</h1>
<p class="faint">{{with .R.Machine}}{{.Taken.Format "2006-01-02 15:04 UTC"}}, revision {{.Revision}}. {{.Cores}} cores ({{.CPU}}), {{.Kernel}}, {{.Go}}, PostgreSQL {{.Postgres}}{{if .Shared}} on the same machine{{end}}, load average {{printf "%.1f" .Load}} at the start.{{end}} {{.Settings}}.</p>
{{if .Ok}}<p>Every acknowledged event is there once: lost 0, doubled 0.{{with .Missed}} {{.}} bounds below were missed; on a busy machine take the figures again.{{end}}</p>
{{else}}<p class="bad">The books do not balance: events were lost or doubled. The rates of those paths are void.</p>{{end}}
{{with .S}}{{with .Knee}}<p>Knee: {{range $k, $v := .Settings}}{{$k}}={{$v}} {{end}}with {{thousands .Rate}} a second: {{.Why}}.</p>{{end}}{{end}}
<h2>Rates</h2><p class="faint">Units a second: the median of the rounds, with a bracket from the lowest to the highest.</p>
{{.Rates}}
<h2>CPU</h2><p class="faint">Microseconds of processor time for each event or message, by process.</p>
{{.Costs}}
{{if .Latencies}}<h2>Latency</h2><p class="faint">How long the given share of requests took at most, from when each was due (open loop). Both axes are logarithmic.</p>
{{.Latencies}}{{end}}
{{if .R.Results}}<h2>What is asked for</h2>
<table><tr><th>Path</th><th>Figure</th><th>Median (lowest to highest)</th><th>Bound</th><th></th></tr>
{{range $r := .R.Results}}{{range .Checks}}<tr><td>{{$r.Name}}</td><td>{{.What}}</td><td>{{figure .Got.Median}} ({{figure .Got.Low}} to {{figure .Got.High}}) {{.Unit}}</td><td>{{if .Floor}}at least{{else}}at most{{end}} {{figure .Bound}}</td><td>{{if .Met}}met{{else}}<span class="bad">missed</span>{{end}}</td></tr>
{{end}}{{end}}</table>
<h2>The paths</h2>
<table><tr><th>Path</th><th>What it does</th><th>Sent</th><th>Acknowledged</th><th>Lost</th><th>Doubled</th></tr>
{{range .R.Results}}<tr><td>{{.Name}}</td><td>{{.Title}}{{with .Note}}<br><span class="faint">{{.}}</span>{{end}}{{range .Books.Faults}}<br><span class="bad">{{.}}</span>{{end}}</td><td>{{.Books.Sent}}</td><td>{{.Books.Acknowledged}}</td><td>{{.Books.Lost}}</td><td>{{.Books.Doubled}}</td></tr>
{{end}}</table>{{end}}
</body></html>
`))
