package explain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// madeSQL finds where the messages go that the rule made of the event.
const madeSQL = `
select distinct destination from outbox
where message_id >= $1 and tenant_id = $2 and rule_id = any($3) and event_id = $4`

const rememberedSQL = `select exists (select from dedupe_keys where tenant_id = $1 and key_hash = $2)`

// held works out what kept a match from becoming a message; nil where it became one.
func (x *Explainer) held(ctx context.Context, e pipeline.Event, l rules.Look) (*Held, error) {
	first, err := x.messageAt(ctx, e.ReceivedAt.Add(-max(l.Cooldown, l.CapPer)-clockSlack))
	if err != nil {
		return nil, err
	}
	rows, err := x.Conn.Query(ctx, madeSQL, first, x.Tenant, l.Names, e.ID)
	if err != nil {
		return nil, err
	}
	made, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	if len(made) > 0 {
		return x.partlyHeld(ctx, e, l, made)
	}
	if l.MaxAge > 0 {
		return &Held{Reason: Old, Limit: l.MaxAge}, nil
	}
	if looked, err := x.looked(ctx, e, l.Names); err != nil || !looked {
		return &Held{Reason: NoDecision}, err
	}
	limited := l.Cooldown > 0 || l.CapMax > 0
	if keyed := l.Ledger != (pipeline.UUID{}); keyed {
		var remembered bool
		if err := x.Conn.QueryRow(ctx, rememberedSQL, x.Tenant, l.Ledger).Scan(&remembered); err != nil {
			return nil, err
		}
		if !remembered {
			return &Held{Reason: NoDecision, Keyed: true}, nil
		}
		if h, err := x.duplicate(ctx, l); h != nil || err != nil {
			return h, err
		}
	}
	over, err := x.overLimit(ctx, e, l)
	switch keyed := l.Ledger != (pipeline.UUID{}); {
	case err != nil || !limited && over != nil:
		return over, err
	case !limited && !keyed:
		return &Held{Reason: NoDecision}, nil
	case !limited:
		return &Held{Reason: Pruned}, nil
	}
	h, err := x.heldBack(ctx, e, l, first)
	if err != nil {
		return nil, err
	}
	if h.Reason == Limited && over != nil {
		h = over
	}
	return h, x.digest(ctx, h, e, l)
}

// partlyHeld finds the limit over one destination that held back what was made for others; nil if none is known to.
func (x *Explainer) partlyHeld(ctx context.Context, e pipeline.Event, l rules.Look, made []string) (*Held, error) {
	l.Under = slices.DeleteFunc(slices.Clone(l.Under), func(u rules.Under) bool {
		return u.Quota.To == "" || slices.Contains(made, u.Quota.To)
	})
	h, err := x.overLimit(ctx, e, l)
	if h != nil {
		h.Partly = true
	}
	return h, err
}

const momentsSQL = `
select m from limit_subjects, unnest(moments) m
where tenant_id = $1 and limit_id = $2 and subject = $3 and m > $4::timestamptz - $5::interval order by m desc`

// overLimit finds the limit over several rules that held a decision back; nil if none is known to.
func (x *Explainer) overLimit(ctx context.Context, e pipeline.Event, l rules.Look) (*Held, error) {
	for _, u := range l.Under {
		h := &Held{Reason: OverLimit, Name: u.Quota.Name, Max: u.Quota.AtMost, Limit: u.Quota.Per, Destination: u.Quota.To}
		if u.Counted() {
			rows, err := x.Conn.Query(ctx, momentsSQL, x.Tenant, u.State, u.Subject, e.ReceivedAt, u.Quota.Per)
			if err != nil {
				return nil, err
			}
			moments, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
			if err != nil {
				return nil, err
			}
			if h.Granted = len(moments); h.Granted >= u.Quota.AtMost {
				h.At = &moments[0]
				return h, x.limitDigest(ctx, h, e, u)
			}
		}
		if u.Quiet(e.ReceivedAt) && !u.Quota.Defer {
			return h, x.limitDigest(ctx, h, e, u)
		}
	}
	return nil, nil
}

const limitDigestSQL = `
select held, digest_due_at from limit_subjects
where tenant_id = $1 and limit_id = $2 and subject = $3 and digest_due_at is not null
    and held_since <= $4::timestamptz + $5::interval`

// limitDigest adds when a digest tells of what a limit held back.
func (x *Explainer) limitDigest(ctx context.Context, h *Held, e pipeline.Event, u rules.Under) error {
	err := x.Conn.QueryRow(ctx, limitDigestSQL, x.Tenant, u.State, u.Subject, e.ReceivedAt, aBatch).Scan(&h.Suppressed,
		&h.Digest)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// lookedSQL asks whether the rule looked at anything around an arrival, or has not reported anything since.
const lookedSQL = `
select coalesce(bool_or(hour <= $2::timestamptz + $3::interval), true) from rule_hours
where rule_id = any($1) and hour >= date_trunc('hour', $2::timestamptz - $3::interval) and evaluated > 0`

// looked reports whether the rule was in force when the event arrived, as far as can be told.
func (x *Explainer) looked(ctx context.Context, e pipeline.Event, names []string) (looked bool, err error) {
	err = x.Conn.QueryRow(ctx, lookedSQL, names, e.ReceivedAt, clockSlack).Scan(&looked)
	return looked, err
}

// heldTimer works out why a timer that ran out made no message: its key was used before, or a limit of its subject,
// which is known here where it is the key.
func (x *Explainer) heldTimer(ctx context.Context, e pipeline.Event, l rules.Look, t *Timer) (*Held, error) {
	if h, err := x.duplicate(ctx, l); h != nil || err != nil {
		return h, err
	}
	if !l.SubjectIsKey || l.Cooldown == 0 && l.CapMax == 0 {
		return nil, nil
	}
	l.Subject = l.Key
	e.ReceivedAt = t.Trigger.Add(l.Within) // when it was due; the sweep took it up to a few seconds later
	if t.Activity != nil && t.Activity.After(*t.Trigger) {
		e.ReceivedAt = t.Activity.Add(l.Within)
	}
	first, err := x.messageAt(ctx, e.ReceivedAt.Add(-max(l.Cooldown, l.CapPer)-clockSlack))
	if err != nil {
		return nil, err
	}
	return x.heldBack(ctx, e, l, first)
}

const usedSQL = `
select message_id, created_at from outbox where tenant_id = $1 and rule_id = any($2) and dedupe_key = $3
order by message_id limit 1`

func (x *Explainer) duplicate(ctx context.Context, l rules.Look) (*Held, error) {
	h := &Held{Reason: Duplicate}
	err := x.Conn.QueryRow(ctx, usedSQL, x.Tenant, l.Names, l.Key).Scan(&h.By, &h.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return h, err
}

// grantsSQL finds what the subject was granted in the time before an event arrived: what its row still remembers, and
// messages. Several of one moment are those of one batch; row and messages tell of the same ones.
const grantsSQL = `
select at from (
    select at, max(n) as n from (
        select at, count(*) as n from (select unnest(recent) as at from rule_subjects
            where tenant_id = $1 and rule_id = $2 and subject = $3) r group by at
        union all
        select created_at, count(distinct event_id) from outbox
        where message_id >= $4 and tenant_id = $1 and rule_id = any($5) and subject_key = $3 and event_id is not null
        group by created_at) g
    group by at) moments, generate_series(1, n)
where at > $6::timestamptz - $7::interval and at <= $6::timestamptz + $8::interval
order by at desc`

// aBatch is how long after its arrival a decision about an event may be made; another one in that moment may have been
// before or after it.
const aBatch = 5 * time.Second

// heldBack finds which limit held a decision back, as far as what was granted before is still known.
func (x *Explainer) heldBack(ctx context.Context, e pipeline.Event, l rules.Look, first int64) (*Held, error) {
	rows, err := x.Conn.Query(ctx, grantsSQL, x.Tenant, l.StateKey, l.Subject, first, l.Names, e.ReceivedAt,
		max(l.Cooldown, l.CapPer), aBatch)
	if err != nil {
		return nil, err
	}
	granted, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	if err != nil {
		return nil, err
	}
	var now time.Time
	if err := x.Conn.QueryRow(ctx, `select now()`).Scan(&now); err != nil {
		return nil, err
	}
	inCap := 0
	for _, at := range granted {
		if at.After(e.ReceivedAt.Add(-l.CapPer)) {
			inCap++
		}
	}
	switch {
	case l.Cooldown > 0 && len(granted) > 0 && granted[0].After(e.ReceivedAt.Add(-l.Cooldown)):
		until := granted[0].Add(l.Cooldown)
		return &Held{Reason: Cooldown, At: &granted[0], Limit: l.Cooldown, Until: &until, Over: !until.After(now)}, nil
	case l.CapMax > 0 && inCap >= l.CapMax:
		return &Held{Reason: Cap, At: &granted[0], Limit: l.CapPer, Max: l.CapMax, Granted: inCap}, nil
	}
	return &Held{Reason: Limited}, nil
}

const digestSQL = `
select suppressed, digest_due_at from rule_subjects
where tenant_id = $1 and rule_id = $2 and subject = $3 and digest_due_at is not null
    and suppressed_since <= $4::timestamptz + $5::interval`

// digest adds when a digest tells of what was held back.
func (x *Explainer) digest(ctx context.Context, h *Held, e pipeline.Event, l rules.Look) error {
	err := x.Conn.QueryRow(ctx, digestSQL, x.Tenant, l.StateKey, l.Subject, e.ReceivedAt, aBatch).Scan(&h.Suppressed,
		&h.Digest)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}
