package evaluate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// claimSeedSQL selects the rules whose timers have to be made from the stored events: those that no node had in force
// for a while, and, once, those seeded a while ago, for the batches that were under way then. The row is locked until
// the seed commits, so that one node does it.
//
// What was stored while the rule was in force everywhere is known. So only what arrived since is read again: $2
// earlier, for batches that were under way.
const claimSeedSQL = `
select case when seeds > 0 then
	case when seen_at <= now() - $2::interval then seen_at else seeded_at - 2 * $2::interval end - $2::interval end
from absence_seeds where timer = $1
	and (seen_at <= now() - $2::interval or seeds = 0 or seeds = 1 and seeded_at <= now() - $2::interval)
for update skip locked`

// seenSQL notes that a rule is in force, unless its timers have to be seeded first.
const seenSQL = `
update absence_seeds set seen_at = now() where timer = any($1) and seen_at > now() - $2::interval
	and seen_at <= now() - $2::interval / 4`

const newSeedSQL = `insert into absence_seeds (timer, seen_at, seeds) select t, now(), 0 from unnest($1::text[]) t
	order by t on conflict do nothing`

const unseededSQL = `
select timer from absence_seeds where timer = any($1)
	and (seen_at <= now() - $2::interval or seeds = 0 or seeds = 1 and seeded_at <= now() - $2::interval)`

const seededSQL = `
update absence_seeds set seen_at = now(), seeded_at = now(),
	seeds = case when seen_at <= now() - $2::interval then 1 else seeds + 1 end where timer = $1`

const lookbackSQL = `select now() - $1::float8 * interval '1 second'`

// storedSQL reads the events that a rule's timers depend on, over its lookback, in parts. Where that begins is a value:
// PostgreSQL would lock all days before it works out by itself which ones it leaves out.
const storedSQL = `
declare seed no scroll cursor for
select ` + pipeline.EventColumns + `
from events where occurred_at > $1::timestamptz and ($2::text[] is null or event_name = any($2))
	and ($3::timestamptz is null or received_at > $3)`

// seed makes the timers of rules that came into force, from the events of their lookback. A maximum may be taken twice,
// so what ingest does meanwhile does not matter. It returns the rules whose timers know everything that was stored; the
// others must not fire.
func (s *Sweeper) seed(ctx context.Context, set *rules.Set) (current []*rules.Rule, err error) {
	absences := set.Absences()
	if len(absences) == 0 {
		return nil, nil
	}
	timers := make([]string, len(absences))
	for i, r := range absences {
		timers[i] = r.Absence.Timer
	}
	var unseeded []string
	err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (func(), error) {
		rows, err := tx.Query(ctx,
			`select t from unnest($1::text[]) t where not exists (select from absence_seeds s where s.timer = t)`, timers)
		if err != nil {
			return nil, err
		}
		fresh, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err == nil && len(fresh) > 0 {
			_, err = tx.Exec(ctx, newSeedSQL, fresh)
		}
		if err == nil {
			_, err = tx.Exec(ctx, seenSQL, timers, s.reseedAfter)
		}
		if err != nil {
			return nil, err
		}
		if rows, err = tx.Query(ctx, unseededSQL, timers, s.reseedAfter); err != nil {
			return nil, err
		}
		unseeded, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("evaluate: look for rules that came into force: %w", err)
	}
	var errs []error
	for _, r := range absences {
		seeded := true
		if slices.Contains(unseeded, r.Absence.Timer) {
			seeded, err = s.seedOne(ctx, set, r)
			errs = append(errs, err)
		}
		if seeded {
			current = append(current, r)
		}
	}
	return current, errors.Join(errs...)
}

// seedTimeout bounds the reading of a whole lookback.
const seedTimeout = 30 * time.Minute

// seedBounds let the transaction that reads idle while another one writes what was read.
var seedBounds = pgtx.Bounds{Idle: 2 * sweepTimeout, Statement: seedTimeout, Lock: sweepTimeout}

// seedOne makes the timers of one rule, and reports whether it did: another node may be at it.
func (s *Sweeper) seedOne(ctx context.Context, set *rules.Set, r *rules.Rule) (seeded bool, err error) {
	a := r.Absence
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	read := 0
	err = pgtx.InTx(ctx, s.db, readCommitted, seedBounds, func(tx pgx.Tx) error {
		var since *time.Time
		err := tx.QueryRow(ctx, claimSeedSQL, a.Timer, s.reseedAfter).Scan(&since)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		seeded = true
		var from time.Time
		if err := tx.QueryRow(ctx, lookbackSQL, a.Lookback.Seconds()).Scan(&from); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, storedSQL, pgx.QueryExecModeSimpleProtocol, from, a.Names, since); err != nil {
			return err
		}
		for {
			events, err := fetchStored(ctx, tx)
			if err != nil {
				return err
			}
			if len(events) == 0 {
				break
			}
			read += len(events)
			// In a transaction of its own: timers stay locked for a moment only, and in the order of their keys.
			err = s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) (func(), error) {
				return nil, s.engine.recorder().write(ctx, tx, work{marks: set.Revisit(r, events).Marks})
			})
			if err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, "close seed"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, seededSQL, a.Timer, s.reseedAfter)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("evaluate: seed timers of rule %s: %w", r.Name, err)
	}
	if !seeded {
		return false, nil
	}
	s.metrics.seeded.WithLabelValues(r.Name).Add(float64(read))
	s.engine.log.Info("absence rule activated; its timers know the stored events", "rule", r.Name, "events", read)
	return true, nil
}

// fetchStored reads the next part of the cursor.
func fetchStored(ctx context.Context, tx pgx.Tx) (events []pipeline.Event, err error) {
	rows, _ := tx.Query(ctx, "fetch 2000 from seed") // rows have the error
	var e pipeline.EventRow
	_, err = pgx.ForEachRow(rows, e.Fields(), func() error {
		ev, _ := e.Event()
		events = append(events, ev)
		return nil
	})
	return events, err
}
