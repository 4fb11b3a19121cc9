package evaluate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline/evaluate/quota"
	"sluice.example/sluice/pipeline/rules"
)

// heldSQL takes the subjects of rules in force whose digest is due, and starts their count anew. What belongs to other
// rules is left alone: they may be in force in another process, or come back.
const heldSQL = `
with due as materialized (
	select tenant_id, rule_id, subject, suppressed, suppressed_since from rule_subjects
	where digest_due_at <= now() and rule_id = any($2) order by digest_due_at limit $1 for update skip locked),
reset as (
	update rule_subjects s set suppressed = 0, suppressed_since = null, digest_due_at = null from due d
	where s.tenant_id = d.tenant_id and s.rule_id = d.rule_id and s.subject = d.subject)
select tenant_id, rule_id, subject, suppressed, suppressed_since from due`

// limitDigests reports what limits over several rules held back.
func (s *Sweeper) limitDigests(ctx context.Context, set *rules.Set) error {
	limits := set.LimitStates()
	if len(limits) == 0 {
		return nil
	}
	err := s.untilFew(ctx, func(ctx context.Context, tx pgx.Tx) (int, func(), error) {
		held, err := quota.Due(ctx, tx, limits, s.sweepBatch)
		if err != nil || len(held) == 0 {
			return 0, nil, err
		}
		r := s.engine.recorder()
		return len(held), r.Committed, r.record(ctx, tx, set.LimitDigest(held))
	})
	if err != nil {
		return fmt.Errorf("evaluate: digests of limits: %w", err)
	}
	return nil
}

// digests reports what cooldown and cap held back.
func (s *Sweeper) digests(ctx context.Context, set *rules.Set) error {
	states := set.States()
	if len(states) == 0 {
		return nil
	}
	err := s.untilFew(ctx, func(ctx context.Context, tx pgx.Tx) (int, func(), error) {
		rows, err := tx.Query(ctx, heldSQL, s.sweepBatch, states)
		if err != nil {
			return 0, nil, err
		}
		held, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rules.Held])
		if err != nil || len(held) == 0 {
			return 0, nil, err
		}
		r := s.engine.recorder()
		return len(held), r.Committed, r.record(ctx, tx, set.Digest(held))
	})
	if err != nil {
		return fmt.Errorf("evaluate: digests: %w", err)
	}
	return nil
}
