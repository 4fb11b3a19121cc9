package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/claim"
)

// Plan is what a change would do now. The messages that it counts are fixed by At and Through.
type Plan struct {
	// ID names the plan. It becomes one job at most.
	ID     pipeline.UUID `json:"plan_id"`
	Filter claim.Filter  `json:"filter"`
	// Messages is how many there are, Groups by destination and status.
	Messages int64         `json:"messages"`
	Groups   []claim.Group `json:"groups"`
	// Sample are the newest five, without payloads.
	Sample []Message `json:"sample"`
	// Through is the newest message there is, and At the time, by the database's clock.
	Through int64     `json:"through_message_id"`
	At      time.Time `json:"at"`
}

const planSQL = `select coalesce((select max(message_id) from outbox), 0) as through, now() as at`

// Plan counts what the change would do to the messages that match. It takes as long as counting does, which ends with
// ctx.
func (c Change) Plan(ctx context.Context, db claim.DB, f claim.Filter) (p Plan, err error) {
	if f.Statuses == nil {
		f.Statuses = c.Statuses
	}
	rows, err := db.Query(ctx, planSQL)
	if err != nil {
		return p, fmt.Errorf("outbox: plan: %w", err)
	}
	type mark struct {
		Through int64
		At      time.Time
	}
	now, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[mark])
	if err != nil {
		return p, fmt.Errorf("outbox: plan: %w", err)
	}
	p = Plan{ID: pipeline.NewUUIDv4(), Filter: f, Through: now.Through, At: now.At}
	if p.Groups, err = claim.Count(ctx, db, f); err != nil {
		return p, err
	}
	for _, g := range p.Groups {
		p.Messages += g.Messages
	}
	p.Sample, _, err = List(ctx, db, f, 0, 5)
	for i := range p.Sample {
		p.Sample[i].Payload, p.Sample[i].Headers = nil, nil
	}
	return p, err
}

const startSQL = `
insert into operator_jobs (kind, filter, max_id, after_id, planned, rate, actor, why, made_at, plan)
select $1, $2::text::jsonb, $3, 0, $4, $5, $6, $7, $8, $9::text::uuid
where $8 > now() - $10::float8 * interval '1 second'
on conflict (plan) do nothing
returning id`

const startedSQL = `select id from operator_jobs where plan = $1::text::uuid`

// PlanFor is how long a plan can become a job: what was counted longer ago says little about what there is now.
const PlanFor = 15 * time.Minute

// ErrPlanOld means that a plan was made longer than PlanFor ago.
var ErrPlanOld = fmt.Errorf("the plan is older than %.0f minutes", PlanFor.Minutes())

// Start makes the job of a plan: processes with the role console change its messages, at most rate of them a second.
// A plan that is a job already is that job. It returns ErrPlanOld where the plan is too old.
func (c Change) Start(ctx context.Context, db pgtx.Beginner, p Plan, rate float64, by audit.Actor) (id int64,
	err error) {
	filter, err := json.Marshal(jobFilter{Filter: p.Filter})
	if err != nil {
		return 0, err
	}
	err = pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		plan := p.ID.String()
		err := tx.QueryRow(ctx, startSQL, pgx.QueryExecModeCacheDescribe, c.Done, string(filter), p.Through, p.Messages, rate,
			by.Name, by.Why, p.At, plan, PlanFor.Seconds()).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			err = tx.QueryRow(ctx, startedSQL, pgx.QueryExecModeCacheDescribe, plan).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				err = ErrPlanOld
			}
			return err
		}
		if err != nil {
			return err
		}
		return audit.Write(ctx, tx, by, c.Name, fmt.Sprintf("job %d", id), nil, json.RawMessage(filter))
	})
	if err != nil {
		return 0, fmt.Errorf("outbox: start a job: %w", err)
	}
	return id, nil
}

// Job is a job as it stands.
type Job struct {
	ID     int64           `db:"id" json:"job_id"`
	Kind   string          `db:"kind" json:"kind"`
	Filter json.RawMessage `db:"filter" json:"filter"`
	State  string          `db:"state" json:"state"`
	Paused bool            `db:"paused" json:"paused"`
	// Working is true while a process has it, and Failed while it rests after a failure, before it is tried again.
	Working bool `db:"working" json:"working"`
	Failed  bool `db:"failed" json:"failed"`
	// Done counts what was changed, of Planned, which is nil for the job of a command, as Rate is, in messages a second.
	Done    int64     `db:"done" json:"done"`
	Planned *int64    `db:"planned" json:"planned,omitempty"`
	Rate    *float64  `db:"rate" json:"rate,omitempty"`
	Actor   string    `db:"actor" json:"actor"`
	Why     string    `db:"why" json:"why"`
	MadeAt  time.Time `db:"made_at" json:"made_at"`
	Error   *string   `db:"error" json:"error,omitempty"`
}

// Word is its state in a word or two.
func (j Job) Word() string {
	switch {
	case j.State != "running":
		return j.State
	case j.Paused:
		return "paused"
	case j.Working:
		return "running"
	case j.Failed:
		return "failed, will be tried again"
	case j.Rate == nil:
		return "interrupted"
	}
	return "waiting"
}

// LeftOut is how many of the messages that were planned a job that is done did not change.
func (j Job) LeftOut() int64 {
	if j.State != "done" || j.Planned == nil {
		return 0
	}
	return max(0, *j.Planned-j.Done)
}

// JobList is jobs, the newest first. As JSON it is an array.
type JobList []Job

// Print writes a line for each.
func (list JobList) Print(w io.Writer) error {
	var b strings.Builder
	for _, j := range list {
		fmt.Fprintf(&b, "%d  %s  %s, %s: %d", j.ID, j.MadeAt.UTC().Format(time.RFC3339), j.Kind, j.Word(), j.Done)
		if j.Planned != nil {
			fmt.Fprintf(&b, " of %d", *j.Planned)
		}
		fmt.Fprintf(&b, " messages, by %s", j.Actor)
		if j.Error != nil {
			fmt.Fprintf(&b, "; %s", oneLine(*j.Error))
		}
		b.WriteByte('\n')
	}
	if len(list) == 0 {
		b.WriteString("no jobs\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const jobsSQL = `
select id, kind, filter, state, paused, lease_token is not null and locked_until > now() as working,
    lease_token is null and coalesce(locked_until > now(), false) as failed, done, planned, rate, actor,
    why, made_at, error
from operator_jobs
where ($1::bigint = 0 or id = $1) and ($2::bigint = 0 or id < $2)
order by id desc
limit $3`

// Jobs returns jobs, the newest first: at most limit of those before an id (0: from the newest).
func Jobs(ctx context.Context, db claim.DB, before int64, limit int) ([]Job, error) {
	return jobs(ctx, db, 0, before, limit)
}

// ErrNoJob means that no job has this id; those that ended are forgotten after 90 days.
var ErrNoJob = errors.New("no such job")

// OneJob returns a job, or ErrNoJob.
func OneJob(ctx context.Context, db claim.DB, id int64) (Job, error) {
	found, err := jobs(ctx, db, id, 0, 1)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("job %d: %w", id, ErrNoJob)
	}
	if err != nil {
		return Job{}, err
	}
	return found[0], nil
}

func jobs(ctx context.Context, db claim.DB, id, before int64, limit int) ([]Job, error) {
	rows, err := db.Query(ctx, jobsSQL, pgx.QueryExecModeCacheDescribe, id, before, limit)
	if err != nil {
		return nil, fmt.Errorf("outbox: jobs: %w", err)
	}
	found, err := pgx.AppendRows([]Job{}, rows, pgx.RowToStructByName[Job])
	if err != nil {
		return nil, fmt.Errorf("outbox: jobs: %w", err)
	}
	return found, nil
}

// The ways to steer a job that is not at its end. A step that is not at its own end is undone.
var (
	Pause  = Steer{"paused", `update operator_jobs set paused = true, locked_until = null, lease_token = null`}
	Resume = Steer{"resumed", `update operator_jobs set paused = false`}
	Cancel = Steer{"cancelled", `update operator_jobs set state = 'cancelled', locked_until = null, lease_token = null`}
)

// Steer is Pause, Resume or Cancel.
type Steer struct {
	// Done is the participle: "paused".
	Done string
	sql  string
}

// ErrJobEnded means that a job is done or was cancelled.
var ErrJobEnded = errors.New("the job has ended")

// Do steers a job, and puts that into the audit.
func (s Steer) Do(ctx context.Context, db pgtx.Beginner, id int64, by audit.Actor) error {
	return pgtx.InTx(ctx, db, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		before, err := OneJob(ctx, tx, id)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, s.sql+` where id = $1 and state = 'running'`, pgx.QueryExecModeCacheDescribe, id)
		if err != nil {
			return fmt.Errorf("outbox: job %d: %w", id, err)
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("job %d: %w", id, ErrJobEnded)
		}
		return audit.Write(ctx, tx, by, "job "+s.Done, fmt.Sprintf("job %d", id), before, nil)
	})
}

// takeAnySQL takes the oldest job that processes are to do and none has, of a kind that this program knows.
const takeAnySQL = `
with found as materialized (
    select id from operator_jobs
    where state = 'running' and rate is not null and not paused and (locked_until is null or locked_until <= now())
        and kind = any ($3)
    order by id limit 1
    for update skip locked
)
update operator_jobs
set lease_token = $1::text::uuid, locked_until = now() + $2::float8 * interval '1 second', error = null
where id = (select id from found)
returning id, kind, filter, rate, max_id, after_id, done, made_at, now() as now, true as resumed`

// workEvery is how often a process looks for jobs.
const workEvery = time.Second

// mostAStep is how many messages one step changes, which holds their locks for so long as that takes.
const mostAStep = 500

// restFor is how long a job that failed rests, while others have their turn. A guess: what failed once, such as by a
// lock, may well work then.
const restFor = 30 * time.Second

// Work does jobs until ctx ends, one at a time, and returns nil. Any number of processes may: each job is of one at a
// time, by a lease, and one whose process died is done by the next. A failure is logged and kept with the job, which
// is tried again after restFor.
func Work(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	for wait.For(ctx, workEvery) {
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = workOne(ctx, pool); err != nil && ctx.Err() == nil {
				log.Warn("outbox: a job; it is tried again", "error", err)
			}
		}
	}
	return nil
}

type anyJob struct {
	job
	Kind   string
	Filter json.RawMessage
	Rate   float64
}

// workOne does a job, if there is one.
func workOne(ctx context.Context, pool *pgxpool.Pool) (found bool, err error) {
	token := pipeline.NewUUIDv4()
	var j *anyJob
	err = pgtx.InTx(ctx, pool, pgx.TxOptions{}, bounds, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, takeAnySQL, pgx.QueryExecModeCacheDescribe, token.String(), leaseFor.Seconds(),
			slices.Sorted(maps.Keys(changes)))
		if err != nil {
			return err
		}
		j, err = pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByNameLax[anyJob])
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take a job: %w", err)
	}
	j.token, j.lease = token, leaseFor
	if err := j.do(ctx, pool); err != nil && !errors.Is(err, errNotOurs) {
		rest := restFor.Seconds()
		if ctx.Err() != nil {
			rest = 0 // it is this process that ends
		}
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		// Where this fails too, the lease runs out.
		_, _ = pool.Exec(releasing, releaseSQL, pgx.QueryExecModeCacheDescribe, j.ID, j.token.String(), err.Error(), rest)
		return true, fmt.Errorf("job %d: %w", j.ID, err)
	}
	return true, nil
}

// do changes messages until none is left, at the job's rate.
func (j *anyJob) do(ctx context.Context, pool *pgxpool.Pool) error {
	c := changes[j.Kind]
	var f jobFilter
	if err := json.Unmarshal(j.Filter, &f); err != nil {
		return fmt.Errorf("the filter of another version of the program: %w", err)
	}
	f.Filter = j.fixed(f.Filter)
	batch := min(max(1, int(j.Rate)), mostAStep)
	last := j.AfterID
	for {
		step, err := j.step(ctx, pool, func(tx pgx.Tx) (claim.Step, error) { return c.apply(ctx, tx, f.Filter, last, batch) })
		if err != nil {
			return err
		}
		if last = step.Last; step.Done {
			return nil
		}
		if !wait.For(ctx, time.Duration(float64(step.Changed)/j.Rate*float64(time.Second))) {
			return errors.New("the process ended")
		}
	}
}
