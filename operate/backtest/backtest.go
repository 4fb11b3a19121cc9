// Package backtest replays stored events through rules, and compares rule sets.
package backtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/schollz/progressbar/v3"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
	"sluice.example/sluice/pipeline/rules/replay"
)

// Options are the flags of "rules backtest".
type Options struct {
	From, To string
	Against  string
	MaxLate  string
	Samples  int
	JSON     bool
}

// backtest is one run: the rules, and maybe others to compare with, on the same stored events.
type backtest struct {
	from, to   time.Time
	set, other *rules.Set
	samples    int
	// maxLate bounds how late the events are that are looked at; 0 does not.
	maxLate time.Duration
	json    bool
}

func (o Options) period(now time.Time) (from, to time.Time, err error) {
	read := func(name, text string, fallback time.Time) time.Time {
		if text == "" {
			return fallback
		}
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", time.DateOnly} {
			if at, parseErr := time.ParseInLocation(layout, text, time.UTC); parseErr == nil {
				return at.UTC()
			}
		}
		if ago, durationErr := duration.Parse(text); durationErr == nil {
			return now.Add(-ago)
		}
		err = errors.Join(err, fmt.Errorf("--%s: %q is no time: use 2026-11-30, 2026-11-30T12:00:00Z, or how long ago, like 7d", name, text))
		return fallback
	}
	from, to = read("from", o.From, now.Add(-24*time.Hour)), read("to", o.To, now)
	if err == nil && !from.Before(to) {
		err = fmt.Errorf("--from (%s) is not before --to (%s)", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	return from, to, err
}

// Run replays.
func Run(ctx context.Context, conn *pgx.Conn, o Options, file string, known rules.Options, env cli.Env) error {
	b := backtest{samples: o.Samples, json: o.JSON}
	var err error
	if o.MaxLate != "" {
		if b.maxLate, err = duration.Parse(o.MaxLate); err != nil || b.maxLate <= 0 {
			return cli.Usagef("--max-late: %q is no length of time like 2d", o.MaxLate)
		}
	}
	if b.from, b.to, err = o.period(time.Now().UTC()); err != nil {
		return cli.Usage(err)
	}
	if b.set, err = rules.Load(file, known); err != nil {
		return fmt.Errorf("the rules have errors; see \"pipeline rules check %s\"", file)
	}
	if o.Against != "" {
		if b.other, err = rules.Load(o.Against, known); err != nil {
			return fmt.Errorf("the rules to compare with have errors; see \"pipeline rules check %s\"", o.Against)
		}
	}
	return b.run(ctx, conn, env)
}

// storedFromSQL reads every partition, since an event may be late by any time, unless $4 bounds that. The bound is a
// value, and not worked out by PostgreSQL, which would lock all days before it knows which ones it leaves out.
const storedFromSQL = `
from events where received_at >= $1 and received_at < $2 and ($3::text[] is null or event_name = any($3))
	and occurred_at >= $4::timestamptz`

const storedEventsSQL = `
select tenant_id, event_id, occurred_at, received_at, event_name, coalesce(anonymous_id, ''), coalesce(user_id, ''), coalesce(session_id, ''),
	coalesce(page_url, ''), coalesce(referrer, ''), coalesce(user_agent, ''), coalesce(client_id, ''), properties` + storedFromSQL + `
order by received_at, event_id`

// run replays the events in the order in which they arrived. It begins as long before from as the rules remember, and
// reports only what is decided from then on.
func (b *backtest) run(ctx context.Context, conn *pgx.Conn, env cli.Env) error {
	sets := []*rules.Set{b.set}
	if b.other != nil {
		sets = append(sets, b.other)
	}
	names, memory := []string{}, time.Duration(0)
	for _, s := range sets {
		memory = max(memory, s.Reach(b.from))
		own := s.Names()
		if own == nil || names == nil {
			names = nil
			continue
		}
		names = append(names, own...)
	}
	start := b.from.Add(-memory)
	var replays []*replay.Run
	for _, s := range sets {
		replays = append(replays, replay.New(s, start))
	}
	// Read-only: a backtest can change nothing.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var total int64
	if err := tx.QueryRow(ctx, "select count(*)"+storedFromSQL, start, b.to, names, b.earliest(start)).Scan(&total); err != nil {
		return fmt.Errorf("rules backtest: count events: %w", err)
	}
	bar := progressbar.DefaultSilent(total)
	if env.Terminal {
		bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(env.Stderr), progressbar.OptionSetDescription("backtest"),
			progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	if err := b.feed(ctx, tx, start, names, replays, bar); err != nil {
		return fmt.Errorf("rules backtest: %w", err)
	}
	_ = bar.Finish()
	for _, r := range replays {
		r.Advance(b.to)
	}
	report := b.report(replays)
	report.Events, report.RememberedFrom = total, start
	if b.json {
		out := json.NewEncoder(env.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(report)
	}
	return report.print(env.Stdout)
}

// earliest is the earliest time of an event of those that arrived since start.
func (b *backtest) earliest(start time.Time) string {
	if b.maxLate == 0 {
		return "-infinity"
	}
	return start.Add(-b.maxLate).UTC().Format(time.RFC3339Nano)
}

func (b *backtest) feed(ctx context.Context, tx pgx.Tx, start time.Time, names []string, replays []*replay.Run, bar *progressbar.ProgressBar) error {
	rows, err := tx.Query(ctx, storedEventsSQL, start, b.to, names, b.earliest(start))
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
