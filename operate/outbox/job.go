package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/claim"
)

// leaseFor is how long a job belongs to a process after each step, beside the pause until the next. A guess: longer
// than a step takes, and short enough to wait for after a crash.
const leaseFor = 15 * time.Second

// job is a row of operator_jobs that this process has.
type job struct {
	ID      int64
	MaxID   int64
	AfterID int64
	Done    int64
	MadeAt  time.Time
	Now     time.Time // of the database
	Resumed bool

	token pipeline.UUID
	lease time.Duration
}

// fixed is a filter as it was when the job was made: it picks no message that was made later, none that died later
// where only final ones are asked for, and ages count from then, by the database's clock.
func (j *job) fixed(f claim.Filter) claim.Filter {
	age := j.Now.Sub(j.MadeAt)
	f.Through = j.MaxID
	waits := func(status string) bool { return status == "pending" || status == "failed" }
	if len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, waits) {
		f.FinalBy = j.MadeAt
	}
	if f.OlderThan > 0 {
		f.OlderThan += age
	}
	if f.NewerThan > 0 {
		f.NewerThan += age
	}
	return f
}

// jobFilter is by what jobs are recognised.
type jobFilter struct {
	claim.Filter
	After int64
}

const (
	// takeSQL takes the oldest unfinished job of a kind and a filter, if no other process has it.
	takeSQL = `
with found as materialized (
    select id from operator_jobs where kind = $1 and filter = $2::jsonb and state = 'running' and rate is null
    order by id limit 1
    for update
)
update operator_jobs
set lease_token = $3::text::uuid, locked_until = now() + $4::float8 * interval '1 second', error = null
where id = (select id from found) and (locked_until is null or locked_until <= now())
returning id, max_id, after_id, done, made_at, now() as now, true as resumed`

	// makeSQL makes a job, where there is none of this kind and filter.
	makeSQL = `
insert into operator_jobs (kind, filter, max_id, after_id, lease_token, locked_until)
select $1, $2::jsonb, coalesce((select max(message_id) from outbox), 0), $5::bigint, $3::text::uuid,
    now() + $4::float8 * interval '1 second'
where not exists (
    select from operator_jobs where kind = $1 and filter = $2::jsonb and state = 'running' and rate is null)
returning id, max_id, after_id, done, made_at, now() as now, false as resumed`

	// jobsLockSQL keeps two processes from making the same job at the same time.
	jobsLockSQL = `select pg_advisory_xact_lock(hashtextextended('sluice:operator_jobs', 0))`
)

// take takes the unfinished job of a kind and a filter, or makes one. While another process has it, it waits.
func take(ctx context.Context, conn *pgx.Conn, c Change, f jobFilter, lease time.Duration, by audit.Actor,
) (*job, error) {
	filter, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	for {
		j, err := tryTake(ctx, conn, c, string(filter), f.After, lease, by)
		if err != nil || j != nil {
			return j, err
		}
		if !wait.For(ctx, 250*time.Millisecond) {
			return nil, errors.New("interrupted while another process was at work on the same messages")
		}
	}
}

func tryTake(ctx context.Context, conn *pgx.Conn, c Change, filter string, after int64, lease time.Duration,
	by audit.Actor) (found *job, err error) {
	token := pipeline.NewUUIDv4()
	args := []any{pgx.QueryExecModeCacheDescribe, c.Done, filter, token.String(), lease.Seconds()}
	err = pgtx.InTx(ctx, conn, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, jobsLockSQL); err != nil {
			return err
		}
		found, err = oneJob(tx.Query(ctx, takeSQL, args...))
		if err == nil && found == nil {
			found, err = oneJob(tx.Query(ctx, makeSQL, append(args, after)...))
			if err == nil && found != nil {
				err = audit.Write(ctx, tx, by, c.Name, fmt.Sprintf("job %d", found.ID), nil, json.RawMessage(filter))
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: take a job: %w", err)
	}
	if found != nil {
		found.token, found.lease = token, lease
	}
	return found, nil
}

// oneJob reads the one job that a statement returns, nil where there is none.
func oneJob(rows pgx.Rows, err error) (*job, error) {
	if err != nil {
		return nil, err
	}
	j, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[job])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return j, err
}

// stepSQL puts a step on record.
const stepSQL = `
update operator_jobs
set after_id = $3, done = done + $4, state = case when $5 then 'done' else state end,
    locked_until = case when $5 then null else now() + $6::float8 * interval '1 second' end,
    lease_token = case when $5 then null else lease_token end
where id = $1 and lease_token = $2::text::uuid and state = 'running' and not paused`

// errNotOurs means that the job is another process's now, or nobody's.
var errNotOurs = errors.New("it was paused or cancelled, or another process has it, since this one stood still for " +
	"too long")

// bounds: a command that is stopped in the middle holds the locks of some messages for so long, and the turn for a job.
var bounds = pgtx.Bounds{Idle: pgtx.Idle}

// step changes messages and puts that on record, both or neither.
func (j *job) step(ctx context.Context, conn pgtx.Beginner, change func(pgx.Tx) (claim.Step, error),
) (s claim.Step, err error) {
	err = pgtx.InTx(ctx, conn, pgx.TxOptions{}, bounds, func(tx pgx.Tx) (err error) {
		if s, err = change(tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, stepSQL, pgx.QueryExecModeCacheDescribe, j.ID, j.token.String(), s.Last, s.Changed, s.Done,
			j.lease.Seconds())
		if err == nil && tag.RowsAffected() == 0 {
			err = errNotOurs
		}
		return err
	})
	return s, err
}

// releaseSQL lets the next process have the job, after a rest of $4 seconds.
const releaseSQL = `
update operator_jobs
set locked_until = now() + $4::float8 * interval '1 second', lease_token = null, error = $3
where id = $1 and lease_token = $2::text::uuid`

// stopped gives the job back, and returns an error that says how to go on.
func (j *job) stopped(ctx context.Context, conn *pgx.Conn, changed int, done string, cause error) error {
	if ctx.Err() != nil {
		cause = errors.New("interrupted")
	}
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_, err := conn.Exec(releasing, releaseSQL, pgx.QueryExecModeCacheDescribe, j.ID, j.token.String(), cause.Error(), 0.0)
	if err != nil {
		cause = fmt.Errorf("%w (another call can go on in %s)", cause, j.lease)
	}
	return fmt.Errorf("job %d: %d messages %s, then: %w; repeat the command to go on", j.ID, changed, done, cause)
}
