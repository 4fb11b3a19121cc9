package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/pipeline/claim"
)

var ann = audit.Actor{Name: "ann", Via: audit.Console, Why: "their deploy is done"}

// start plans a retry of what is dead, and makes its job.
func start(t *testing.T, pool *pgxpool.Pool, rate float64) (outbox.Plan, int64) {
	t.Helper()
	plan, err := outbox.Retry.Plan(t.Context(), pool, claim.Filter{Destination: "crm"})
	if err != nil {
		t.Fatal(err)
	}
	id, err := outbox.Retry.Start(t.Context(), pool, plan, rate, ann)
	if err != nil {
		t.Fatal(err)
	}
	return plan, id
}

// work does jobs until the function is called that it returns.
func work(t *testing.T, pool *pgxpool.Pool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := outbox.Work(ctx, pool, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	stop = func() { cancel(); group.Wait() }
	t.Cleanup(stop)
	return stop
}

// The plan of a job fixes what it changes: what dies afterwards is left alone. The audit has it.
func TestPlannedJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	insertDead(t, pool, 1200)
	plan, id := start(t, pool, 100_000)
	if plan.Messages != 1200 || len(plan.Sample) != 5 || plan.Sample[0].Payload != nil {
		t.Errorf("the plan is for %d messages, sample %+v; want 1200, five of them, no payload", plan.Messages, plan.Sample)
	}
	insertDead(t, pool, 7)
	work(t, pool)
	pgtest.Until(t, pool, `select state, done from operator_jobs`, "done", int64(1200))
	pgtest.Until(t, pool, `select count(*) filter (where status = 'dead'), count(*) filter (where redrives = 1)
		from outbox`, int64(7), int64(1200))
	pgtest.Until(t, pool, `select actor, via, action, why from operator_audit`, "ann", "console", "retry", ann.Why)
	if err := outbox.Pause.Do(t.Context(), pool, id, ann); !errors.Is(err, outbox.ErrJobEnded) {
		t.Errorf("a job that is done is paused: %v", err)
	}
	if err := outbox.Pause.Do(t.Context(), pool, id+1, ann); !errors.Is(err, outbox.ErrNoJob) {
		t.Errorf("a job that is not there is paused: %v", err)
	}
}

// What was on its way when the plan was made, and dies afterwards, was not planned.
func TestPlanLeavesWhatDiesLater(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	insertDead(t, pool, 3)
	exec(t, pool, `update outbox set status = 'pending', finished_at = null where message_id = 2`)
	_, id := start(t, pool, 1000)
	exec(t, pool, `update outbox set status = 'dead', finished_at = clock_timestamp() where message_id = 2`)
	work(t, pool)
	pgtest.Until(t, pool, `select state, done from operator_jobs`, "done", int64(2))
	pgtest.Until(t, pool, `select string_agg(status, ', ' order by message_id) from outbox`, "pending, dead, pending")
	if job, err := outbox.OneJob(t.Context(), pool, id); err != nil || job.LeftOut() != 0 {
		t.Errorf("%d of the 2 that were planned were left out, %v", job.LeftOut(), err)
	}
}

// A plan becomes one job, however often it is sent and by how many, and none when it is old.
func TestPlanIsUsedOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	insertDead(t, pool, 1)
	plan, first := start(t, pool, 1)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if again, err := outbox.Retry.Start(t.Context(), pool, plan, 1, ann); err != nil || again != first {
				t.Errorf("the plan of job %d is started again as job %d, %v", first, again, err)
			}
		})
	}
	group.Wait()
	pgtest.Until(t, pool, `select (select count(*) from operator_jobs), (select count(*) from operator_audit)`,
		int64(1), int64(1))

	plan, err := outbox.Retry.Plan(t.Context(), pool, claim.Filter{Destination: "crm"})
	if err != nil {
		t.Fatal(err)
	}
	plan.At = plan.At.Add(-outbox.PlanFor)
	if _, err := outbox.Retry.Start(t.Context(), pool, plan, 1, ann); !errors.Is(err, outbox.ErrPlanOld) {
		t.Errorf("an old plan is started: %v", err)
	}
}

// A job that fails rests, and holds up no younger one. It is tried again, and what was wrong is to be seen. A job of a
// kind that only a newer program knows is left to it.
func TestFailingJobHoldsUpNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	insertDead(t, pool, 2)
	exec(t, pool, `insert into operator_jobs (kind, filter, max_id, after_id, planned, rate)
		values ('of tomorrow', '{}', 9, 0, 1, 1)`)
	_, failing := start(t, pool, 1000)
	exec(t, pool, `update operator_jobs set filter = '{"Tenant": "no number"}' where id = $1`, failing)
	_, young := start(t, pool, 1000)
	work(t, pool)
	pgtest.Until(t, pool, `select state, done from operator_jobs where id = `+strconv.FormatInt(young, 10),
		"done", int64(2))
	job, err := outbox.OneJob(t.Context(), pool, failing)
	if err != nil || job.Word() != "failed, will be tried again" || job.Error == nil {
		t.Errorf("the job that fails is %s, %v, %v", job.Word(), job.Error, err)
	}
	exec(t, pool, `update operator_jobs set filter = '{}', locked_until = now() where id = $1`, failing)
	pgtest.Until(t, pool, `select string_agg(concat_ws(' ', state, error, lease_token), ', ' order by id)
		from operator_jobs`, "running, done, done")
}

// A job that is paused stands still, goes on when it is resumed, and ends where it is when it is cancelled: what was
// done and what is left is what was planned. Another process goes on with the job of one that is gone.
func TestSteeredJob(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	insertDead(t, pool, 400)
	_, id := start(t, pool, 40)
	stop := work(t, pool)
	pgtest.Until(t, pool, `select done > 0 from operator_jobs`, true)
	if err := outbox.Pause.Do(t.Context(), pool, id, ann); err != nil {
		t.Fatal(err)
	}
	before := value(t, pool, `select done::text from operator_jobs`)
	stop()
	work(t, pool)
	if got := value(t, pool, `select done::text from operator_jobs`); got != before {
		t.Errorf("%s messages were changed, and %s when it was paused", got, before)
	}
	if err := outbox.Resume.Do(t.Context(), pool, id, ann); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, pool, `select done > `+before+` from operator_jobs`, true)
	if err := outbox.Cancel.Do(t.Context(), pool, id, ann); err != nil {
		t.Fatal(err)
	}
	job, err := outbox.OneJob(t.Context(), pool, id)
	if err != nil || job.Word() != "cancelled" || *job.Planned != 400 {
		t.Errorf("the job is %+v, %v", job, err)
	}
	got := value(t, pool, `select ((select done from operator_jobs) = count(*) filter (where redrives = 1)
		and count(*) filter (where redrives = 1) + count(*) filter (where status = 'dead') = 400
		and max(redrives) = 1)::text from outbox`)
	if got != "true" {
		t.Error("what was done and what is left is not what was planned")
	}
	if got := value(t, pool, `select string_agg(action, ', ' order by audit_id) from operator_audit`); got !=
		"retry, job paused, job resumed, job cancelled" {
		t.Errorf("the audit has %s", got)
	}
}

// One message is changed with its row in the audit, or neither.
func TestChangeOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	insertDead(t, pool, 1)
	if err := outbox.Retry.One(t.Context(), pool, 1, ann); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Retry.One(t.Context(), pool, 1, ann); !errors.Is(err, outbox.ErrNotChanged) {
		t.Errorf("a message that waits is retried: %v", err)
	}
	if err := outbox.Discard.One(t.Context(), pool, 1, ann); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Discard.One(t.Context(), pool, 99, ann); !errors.Is(err, claim.ErrNoMessage) {
		t.Errorf("a message that is not there: %v", err)
	}
	pgtest.Until(t, pool, `select string_agg(concat_ws(' ', action, target, before ->> 'status'), ', ' order by audit_id)
		from operator_audit`, "retry message 1 dead, discard message 1 pending")
	pgtest.Until(t, pool, `select status from outbox`, "skipped")
}
