package evaluate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

// Rechecker looks, between claim and delivery, whether what absence rules decided still holds. It is safe for
// concurrent use.
type Rechecker struct {
	db  *pgxpool.Pool
	log *slog.Logger
}

// NewRechecker makes a rechecker.
func NewRechecker(db *pgxpool.Pool, log *slog.Logger) *Rechecker { return &Rechecker{db, log} }

// releaseFor is when messages that could not be checked are due again.
const releaseFor = time.Second

// Holding returns the leases whose messages still hold, and records the others as skipped, by finish. What happens
// after it goes unseen, so it belongs right behind the claim. Where it can't look, it releases all of them and returns
// the error. It uses the memory of leases.
func (r *Rechecker) Holding(ctx context.Context, leases []pipeline.Lease,
	finish func(context.Context, []pipeline.Result) (late int, err error)) ([]pipeline.Lease, error) {
	skip, err := r.look(ctx, leases)
	if err != nil {
		results := make([]pipeline.Result, len(leases))
		for i, l := range leases {
			results[i] = pipeline.Result{MessageID: l.ID, Token: l.Token, Status: pipeline.Released, RetryIn: releaseFor}
		}
		_, releaseErr := finish(context.WithoutCancel(ctx), results)
		return nil, errors.Join(err, releaseErr)
	}
	if len(skip) == 0 {
		return leases, nil
	}
	var results []pipeline.Result
	var skipped []int64
	kept := leases[:0]
	for _, l := range leases {
		reason := skip[l.ID]
		if reason == "" {
			kept = append(kept, l)
			continue
		}
		results = append(results, pipeline.Result{MessageID: l.ID, Token: l.Token, Status: pipeline.Skipped, Error: reason})
		skipped = append(skipped, l.ID)
	}
	if _, err := finish(ctx, results); err != nil {
		r.log.Warn("messages that no longer hold could not be recorded as skipped; "+
			"they are checked again when their leases have run out", "messages", len(results), "error", err)
	} else if _, err := r.db.Exec(ctx, freeSQL, skipped); err != nil {
		r.log.Warn("keys of messages that were skipped could not be freed; nothing is sent about them again",
			"messages", len(results), "error", err)
	}
	return kept, nil
}

// freeSQL frees keys that were used up for messages of which none was sent. Messages of one decision were written
// together, so their ids are near each other; if one can't be found, the key stays used.
const freeSQL = `
delete from dedupe_keys d using outbox o
where o.message_id = any($1) and o.status = 'skipped' and o.recheck ? 'ledger'
	and d.tenant_id = o.tenant_id and d.key_hash = (o.recheck ->> 'ledger')::uuid
	and ((o.recheck ->> 'messages')::int = 1 or (o.recheck ->> 'messages')::int = (
		select count(*) from outbox s
		where s.message_id between o.message_id - 2000 and o.message_id + 2000 and s.status = 'skipped'
			and s.tenant_id = o.tenant_id and s.rule_id = o.rule_id and s.dedupe_key = o.dedupe_key
			and s.recheck = o.recheck))`

// recheckSQL checks the timers of messages that absence rules made. Without its timer a message goes out. A cancel
// counts from the trigger on, which with anchor idle is before the anchor, and with anchor first not before it. A
// trigger supersedes if it begins another wait: with anchor idle one from before the anchor does not.
const recheckSQL = `
select o.message_id, case
		when o.recheck -> 'skip' ? 'cancelled' and t.cancel_at >= least((o.recheck ->> 'anchor')::timestamptz,
			(o.recheck ->> 'trigger')::timestamptz) then 'cancelled'
		when o.recheck -> 'skip' ? 'superseded' and t.trigger_at > greatest((o.recheck ->> 'anchor')::timestamptz,
			(o.recheck ->> 'trigger')::timestamptz) then 'superseded' end
from outbox o
join absence_timers t on t.tenant_id = o.tenant_id and t.timer = o.recheck ->> 'timer' and t.key = o.recheck ->> 'key'
where o.message_id = any($1) and o.recheck is not null`

// look returns the messages that do not hold any more, and why: cancelled or superseded.
func (r *Rechecker) look(ctx context.Context, leases []pipeline.Lease) (skip map[int64]string, err error) {
	var ids []int64
	for _, l := range leases {
		if l.Rule {
			ids = append(ids, l.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := r.db.Query(ctx, recheckSQL, ids)
	if err == nil {
		skip = map[int64]string{}
		var id int64
		var reason *string
		_, err = pgx.ForEachRow(rows, []any{&id, &reason}, func() error {
			if reason != nil {
				skip[id] = *reason
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("evaluate: re-check %d messages: %w", len(ids), err)
	}
	return skip, nil
}
