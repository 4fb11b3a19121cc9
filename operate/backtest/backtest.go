// Package backtest replays stored events through rules, and compares rule sets: what would have been decided, by day.
//
// It reads the events in one snapshot, read-only, in the order in which they arrived, and decides in memory on a
// virtual clock, so it changes nothing. It begins as long before the period as the rules remember.
package backtest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
	"sluice.example/sluice/pipeline/rules/replay"
)

// Options say what to replay through what.
type Options struct {
	// From and To bound the period, by when events arrived.
	From, To time.Time
	// Set are the rules, Other those to compare with, or nil.
	Set, Other *rules.Set
	// Samples is the most messages to report of each rule.
	Samples int
	// MaxLate leaves events out that happened longer before they arrived; 0 leaves none out. It bounds which partitions
	// are read.
	MaxLate time.Duration
	// Progress is told how many events were replayed, of how many. It may be nil.
	Progress func(done, total int64)
}

// storedFromSQL reads every partition, since an event may be late by any time, unless $4 bounds that. The bound is a
// value, and not worked out by PostgreSQL, which would lock all days before it knows which ones it leaves out.
const storedFromSQL = `
from events
where received_at >= $1 and received_at < $2 and ($3::text[] is null or event_name = any($3))
    and occurred_at >= $4::timestamptz`

const countSQL = `select count(*)` + storedFromSQL

const eventsSQL = `select ` + pipeline.EventColumns + storedFromSQL + ` order by received_at, event_id`

// bounds keep a backtest that is stopped from holding up retention. Its statements may take as long as they take.
var bounds = pgtx.Bounds{Idle: time.Minute, Lock: pgtx.Idle}

// Run replays.
func Run(ctx context.Context, conn *pgx.Conn, o Options) (*Report, error) {
	sets := []*rules.Set{o.Set}
	if o.Other != nil {
		sets = append(sets, o.Other)
	}
	memory := time.Duration(0)
	for _, s := range sets {
		memory = max(memory, s.Reach(o.From))
	}
	b := backtest{Options: o, start: o.From.Add(-memory), names: names(sets)}
	for _, s := range sets {
		b.replays = append(b.replays, replay.New(s, b.start))
	}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	tx, err := pgtx.Begin(ctx, conn, snapshot, bounds)
	if err != nil {
		return nil, fmt.Errorf("rules backtest: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if err := tx.QueryRow(ctx, countSQL, b.arguments()...).Scan(&b.total); err != nil {
		return nil, fmt.Errorf("rules backtest: count events: %w", err)
	}
	if err := b.feed(ctx, tx); err != nil {
		return nil, fmt.Errorf("rules backtest: %w", err)
	}
	for _, r := range b.replays {
		r.Advance(o.To)
	}
	return b.report(), nil
}

// names are the events that the rules listen to, nil for all.
func names(sets []*rules.Set) []string {
	all := []string{}
	for _, s := range sets {
		own := s.Names()
		if own == nil {
			return nil
		}
		all = append(all, own...)
	}
	return all
}

// backtest is one run. The replays are those of Set and of Other.
type backtest struct {
	Options
	start   time.Time
	names   []string
	total   int64
	replays []*replay.Run
}

func (b *backtest) arguments() []any {
	earliest := "-infinity"
	if b.MaxLate > 0 {
		earliest = b.start.Add(-b.MaxLate).UTC().Format(time.RFC3339Nano)
	}
	return []any{b.start, b.To, b.names, earliest}
}

// feed replays the stored events, those that arrived together as one batch.
func (b *backtest) feed(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, eventsSQL, b.arguments()...)
	if err != nil {
		return err
	}
	var batch []pipeline.Event
	done := int64(0)
	flush := func() {
		if len(batch) == 0 {
			return
		}
		for _, r := range b.replays {
			r.Feed(batch, batch[0].ReceivedAt)
		}
		done += int64(len(batch))
		if b.Progress != nil {
			b.Progress(done, b.total)
		}
		batch = nil
	}
	var row pipeline.EventRow
	_, err = pgx.ForEachRow(rows, row.Fields(), func() error {
		e, _ := row.Event() // every row has a key
		if len(batch) > 0 && !batch[0].ReceivedAt.Equal(e.ReceivedAt) {
			flush()
		}
		batch = append(batch, e)
		return nil
	})
	flush()
	return err
}
