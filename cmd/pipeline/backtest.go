package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/schollz/progressbar/v3"

	"sluice/pipeline"
	"sluice/pipeline/evaluate"
)

// backtestOptions are the flags of "rules backtest".
type backtestOptions struct {
	from, to string
	against  string
	samples  int
}

// backtest is one run: the rules, and maybe others to compare with, on the same stored events.
type backtest struct {
	from, to   time.Time
	set, other *evaluate.Set
	samples    int
}

func (o backtestOptions) period(now time.Time) (from, to time.Time, err error) {
	read := func(name, text string, fallback time.Time) time.Time {
		if text == "" {
			return fallback
		}
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", time.DateOnly} {
			if at, parseErr := time.ParseInLocation(layout, text, time.UTC); parseErr == nil {
				return at.UTC()
			}
		}
		if ago, durationErr := parseDuration(text); durationErr == nil {
			return now.Add(-ago)
		}
		err = errors.Join(err, fmt.Errorf("--%s: %q is no time: use 2026-11-30, 2026-11-30T12:00:00Z, or how long ago, like 7d", name, text))
		return fallback
	}
	from, to = read("from", o.from, now.Add(-24*time.Hour)), read("to", o.to, now)
	if err == nil && !from.Before(to) {
		err = fmt.Errorf("--from (%s) is not before --to (%s)", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	return from, to, err
}

func backtestRules(ctx context.Context, conn *pgx.Conn, o backtestOptions, file string, known evaluate.Known, env environment) error {
	b := backtest{samples: o.samples}
	var err error
	if b.from, b.to, err = o.period(time.Now().UTC()); err != nil {
		return usageError{err}
	}
	known.NoTests = true
	if b.set, err = evaluate.Load(file, known); err != nil {
		return fmt.Errorf("the rules have errors; see \"pipeline rules check %s\"", file)
	}
	if o.against != "" {
		if b.other, err = evaluate.Load(o.against, known); err != nil {
			return fmt.Errorf("the rules to compare with have errors; see \"pipeline rules check %s\"", o.against)
		}
	}
	return b.run(ctx, conn, env)
}

// storedFromSQL bounds occurred_at too, so that old partitions are not read: an event that was more than 30 days late
// is left out.
const storedFromSQL = `
from events where received_at >= $1 and received_at < $2 and occurred_at >= $1 - interval '30 days' and occurred_at < $2 + interval '30 days'
	and ($3::text[] is null or event_name = any($3))`

const storedEventsSQL = `
select tenant_id, event_id, occurred_at, received_at, event_name, coalesce(anonymous_id, ''), coalesce(user_id, ''), coalesce(session_id, ''),
	coalesce(page_url, ''), coalesce(referrer, ''), coalesce(user_agent, ''), coalesce(client_id, ''), properties` + storedFromSQL + `
order by received_at, event_id`

// run replays the events in the order in which they arrived. It begins as long before from as the rules remember, and
// reports only what is decided from then on.
func (b *backtest) run(ctx context.Context, conn *pgx.Conn, env environment) error {
	sets := []*evaluate.Set{b.set}
	if b.other != nil {
		sets = append(sets, b.other)
	}
	names, memory := []string{}, time.Duration(0)
	for _, s := range sets {
		memory = max(memory, s.Memory())
		own := s.Names()
		if own == nil || names == nil {
			names = nil
			continue
		}
		names = append(names, own...)
	}
	start := b.from.Add(-memory)
	var replays []*evaluate.Replay
	for _, s := range sets {
		replays = append(replays, evaluate.NewReplay(evaluate.DefaultConfig(), s, start))
	}
	// Read-only: a backtest can change nothing.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var total int64
	if err := tx.QueryRow(ctx, "select count(*)"+storedFromSQL, start, b.to, names).Scan(&total); err != nil {
		return fmt.Errorf("rules backtest: count events: %w", err)
	}
	bar := progressbar.DefaultSilent(total)
	if env.terminal {
		bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(env.stderr), progressbar.OptionSetDescription("backtest"),
			progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	if err := b.feed(ctx, tx, start, names, replays, bar); err != nil {
		return fmt.Errorf("rules backtest: %w", err)
	}
	_ = bar.Finish()
	for _, r := range replays {
		r.Advance(b.to)
	}
	fmt.Fprintf(env.stdout, "%d events that the rules listen to, from %s to %s; %s before that to know what the rules would have remembered.\n\n",
		total, b.from.Format(time.RFC3339), b.to.Format(time.RFC3339), memory)
	return b.report(env.stdout, replays)
}

func (b *backtest) feed(ctx context.Context, tx pgx.Tx, start time.Time, names []string, replays []*evaluate.Replay, bar *progressbar.ProgressBar) error {
	rows, err := tx.Query(ctx, storedEventsSQL, start, b.to, names)
	if err != nil {
		return err
	}
	var batch []pipeline.Event
	flush := func() {
		for _, r := range replays {
			if len(batch) > 0 {
				r.Feed(batch, batch[0].ReceivedAt)
			}
		}
		_ = bar.Add(len(batch)) // drawing is not worth failing for
		batch = nil
	}
	var e pipeline.Event
	_, err = pgx.ForEachRow(rows, []any{&e.Tenant, &e.ID, &e.OccurredAt, &e.ReceivedAt, &e.Name, &e.AnonymousID, &e.UserID, &e.SessionID,
		&e.PageURL, &e.Referrer, &e.UserAgent, &e.ClientID, &e.Properties}, func() error {
		if len(batch) > 0 && !batch[0].ReceivedAt.Equal(e.ReceivedAt) {
			flush()
		}
		e.OccurredAt, e.ReceivedAt, e.Properties = e.OccurredAt.UTC(), e.ReceivedAt.UTC(), slices.Clone(e.Properties)
		batch = append(batch, e)
		return nil
	})
	flush()
	return err
}

// dayOf is one line of the report.
type dayOf struct{ rule, day string }

type dayCounts struct{ messages, duplicate, cooldown, capped, skipped, failures int }

func (b *backtest) report(out io.Writer, replays []*evaluate.Replay) error {
	days := map[dayOf]*dayCounts{}
	at := func(rule string, t time.Time) *dayCounts {
		k := dayOf{rule, t.Format(time.DateOnly)}
		if days[k] == nil {
			days[k] = &dayCounts{}
		}
		return days[k]
	}
	samples := map[string][]evaluate.Decided{}
	for _, d := range b.inPeriod(replays[0]) {
		c := at(d.Rule, d.At)
		switch {
		case d.Suppressed == "duplicate":
			c.duplicate++
		case d.Suppressed == "cooldown":
			c.cooldown++
		case d.Suppressed == "cap":
			c.capped++
		case d.Skipped != "" && d.Skipped != "shadow":
			c.skipped += len(d.Destinations)
		default:
			c.messages += len(d.Destinations)
			if len(samples[d.Rule]) < b.samples {
				samples[d.Rule] = append(samples[d.Rule], d)
			}
		}
	}
	var errs []evaluate.Failed
	for _, f := range replays[0].Failed() {
		if !f.At.Before(b.from) {
			at(f.Rule, f.At).failures++
			if !slices.ContainsFunc(errs, func(o evaluate.Failed) bool { return o.Rule == f.Rule && o.Kind == f.Kind }) {
				errs = append(errs, f)
			}
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RULE\tDAY\tMESSAGES\tDUPLICATE\tCOOLDOWN\tCAP\tSKIPPED\tERRORS")
	for _, r := range b.set.Rules() {
		if r.State == "off" {
			fmt.Fprintf(table, "%s\toff\n", r.Name)
			continue
		}
		keys := slices.SortedFunc(maps.Keys(days), func(a, b dayOf) int { return cmp.Compare(a.day, b.day) })
		some := false
		for _, k := range keys {
			if c := days[k]; k.rule == r.Name {
				some = true
				fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", k.rule, k.day, c.messages, c.duplicate, c.cooldown, c.capped, c.skipped, c.failures)
			}
		}
		if !some {
			fmt.Fprintf(table, "%s\t-\t0\t0\t0\t0\t0\t0\n", r.Name)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range b.set.Rules() {
		printSamples(out, "\n"+r.Name+", the first messages:\n", samples[r.Name])
	}
	for _, f := range errs {
		fmt.Fprintf(out, "\n%s could not decide (%s), for example about event %s: %v\n", f.Rule, f.Kind, f.Event, f.Err)
	}
	if b.other != nil {
		b.compare(out, replays)
	}
	return nil
}

// compare prints what only one of the two rule sets would have sent.
func (b *backtest) compare(out io.Writer, replays []*evaluate.Replay) {
	type message struct{ rule, key, event string }
	sent := func(r *evaluate.Replay) (map[message]evaluate.Decided, []message) {
		found, order := map[message]evaluate.Decided{}, []message{}
		for _, d := range b.inPeriod(r) {
			if d.Suppressed == "" && d.Skipped == "" {
				m := message{d.Rule, d.Key, d.Event.String()}
				found[m] = d
				order = append(order, m)
			}
		}
		return found, order
	}
	mine, mineOrder := sent(replays[0])
	theirs, theirsOrder := sent(replays[1])
	only := func(order []message, in, notIn map[message]evaluate.Decided) (list []evaluate.Decided) {
		for _, m := range order {
			if _, ok := notIn[m]; !ok {
				list = append(list, in[m])
			}
		}
		return list
	}
	added, gone := only(mineOrder, mine, theirs), only(theirsOrder, theirs, mine)
	fmt.Fprintf(out, "\nCompared: %d messages by both, %d only by these rules, %d only by the others.\n", len(mine)-len(added), len(added), len(gone))
	printSamples(out, "Only by these rules:\n", added[:min(len(added), b.samples)])
	printSamples(out, "Only by the others:\n", gone[:min(len(gone), b.samples)])
}

func (b *backtest) inPeriod(r *evaluate.Replay) []evaluate.Decided {
	return slices.DeleteFunc(r.Decided(), func(d evaluate.Decided) bool { return d.At.Before(b.from) })
}

func printSamples(out io.Writer, title string, list []evaluate.Decided) {
	if len(list) == 0 {
		return
	}
	fmt.Fprint(out, title)
	for _, d := range list {
		payload := string(d.Payload)
		if len(payload) > 200 {
			payload = payload[:200] + "..."
		}
		fmt.Fprintf(out, "  %s  %s  subject %q  key %q  %s\n", d.At.Format(time.RFC3339), d.Rule, d.Subject, d.Key, payload)
	}
}
