package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteTable prints a report for a terminal.
func WriteTable(w io.Writer, r *Report) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "%s, %s: %d cores (%s), %.0f GB, %s, PostgreSQL %s, %s, revision %s, load average %.1f at the "+
		"start, took %s\n", r.Command,
		m.Taken.Format("2006-01-02 15:04 UTC"), m.Cores, m.CPU, float64(m.Memory)/1e9, m.Kernel, m.Postgres, m.Go, m.Revision,
		m.Load, r.Took)
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		settings = append(settings, name+"="+m.Settings[name])
	}
	fmt.Fprintf(&b, "%s\n\n", strings.Join(settings, " "))

	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "path\tper second\tlow-high\tprogram us\tPostgreSQL us\tgenerator us\tp50 ms\tp99 ms\tlost\tdoubled\t\n")
	lastFloor := ""
	for _, res := range r.Results {
		if res.Floor != nil && res.Floor.Name != lastFloor {
			lastFloor = res.Floor.Name
			f := res.Floor
			fmt.Fprintf(t, "floor: %s\t%s\t%s\t%s\t%s\t%s\t\t\t\t\t\n", f.Name, thousands(f.Rate.Median), f.Rate.span(),
				figure(f.CPU.Program), figure(f.CPU.PostgreSQL), figure(f.CPU.Generator))
		}
		p50, p99 := "", ""
		if res.Latency != nil {
			p50, p99 = figure(res.Latency.P50), figure(res.Latency.P99)
		}
		rate, low := thousands(res.Rate.Median), res.Rate.span()
		if res.Books.Err() != nil {
			rate, low = "void", "" // a rate of events that are not all there says nothing
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t\n", res.Name, rate, low, figure(res.CPU.Program),
			figure(res.CPU.PostgreSQL), figure(res.CPU.Generator),
			p50, p99, res.Books.Lost, res.Books.Doubled)
	}
	t.Flush()
	b.WriteByte('\n')
	for _, res := range r.Results {
		fmt.Fprintf(&b, "%s: %s\n", res.Name, res.Title)
		for _, c := range res.Checks {
			fmt.Fprintf(&b, "  %s\n", c)
		}
		if res.Note != "" {
			fmt.Fprintf(&b, "  %s\n", res.Note)
		}
		if err := res.Books.Err(); err != nil {
			fmt.Fprintf(&b, "  BOOKS DO NOT BALANCE: %v\n", err)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Spread) span() string { return thousands(s.Low) + "-" + thousands(s.High) }

// WriteMarkdown prints the figures for docs/performance.md.
func WriteMarkdown(w io.Writer, r *Report) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "`%s` on %s, revision %s: %d cores (%s), %.0f GB, %s, %s, PostgreSQL %s on the same machine, load "+
		"average %.1f at the start.\n", r.Command,
		m.Taken.Format("2006-01-02"), m.Revision, m.Cores, m.CPU, float64(m.Memory)/1e9, m.Kernel, m.Go, m.Postgres, m.Load)
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		settings = append(settings, "`"+name+"="+m.Settings[name]+"`")
	}
	fmt.Fprintf(&b, "Settings: %s. Rates are medians, with the lowest and the highest round; CPU is in microseconds "+
		"for each event or message.\n\n", strings.Join(settings, ", "))
	b.WriteString("| Path | Per second | Rounds | Program | PostgreSQL | Generator | p50 | p99 | Floor, in the same " +
		"rounds |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, res := range r.Results {
		latency, floor := "| | |", ""
		if l := res.Latency; l != nil {
			latency = fmt.Sprintf("| %s ms | %s ms |", figure(l.P50), figure(l.P99))
		}
		if f := res.Floor; f != nil {
			floor = fmt.Sprintf("%s: %s (%s), PostgreSQL %s us", f.Name, thousands(f.Rate.Median), f.Rate.span(),
				figure(f.CPU.PostgreSQL))
		}
		fmt.Fprintf(&b, "| %s: %s | %s (%s) | %d | %s | %s | %s %s %s |\n", res.Name, res.Title, thousands(res.Rate.Median),
			res.Rate.span(), res.Rounds,
			figure(res.CPU.Program), figure(res.CPU.PostgreSQL), figure(res.CPU.Generator), latency, floor)
	}
	b.WriteString("\n| Asked for | Median (lowest-highest) | Bound | |\n|---|---|---|---|\n")
	for _, res := range r.Results {
		for _, c := range res.Checks {
			bound := "at most " + figure(c.Bound)
			if c.Floor {
				bound = "at least " + figure(c.Bound)
			}
			verdict := "met"
			if !c.Met() {
				verdict = "**missed**"
			}
			fmt.Fprintf(&b, "| %s: %s | %s (%s-%s) %s | %s | %s |\n", res.Name, c.What, figure(c.Got.Median), figure(c.Got.Low),
				figure(c.Got.High), c.Unit, bound, verdict)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
