package copyin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// waitingSQL counts the COMMITs that wait for a standby.
const waitingSQL = `select count(*) from pg_stat_activity where wait_event = 'SyncRep'`

// endSQL ends the sessions that wait for a standby. What they wrote is committed on the primary.
const endSQL = `select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`

type written struct {
	verdicts []pipeline.Verdict
	err      error
}

// writing runs Write beside the test.
func writing(ctx context.Context, w *Writer, es []pipeline.Event) <-chan written {
	out := make(chan written, 1)
	go func() {
		verdicts, err := w.Write(ctx, es)
		out <- written{verdicts, err}
	}()
	return out
}

// onReplicated returns a pair of servers, and writers by each path whose attempts are short.
func onReplicated(t *testing.T) (*pgtest.Replicated, map[string]*Writer) {
	r := pgtest.NewReplicated(t)
	writers := map[string]*Writer{}
	for _, way := range []string{"straight", "looked up", "with decisions"} {
		w := newWriter(t, r.Primary, func(c *Config) { c.Deadline = time.Second })
		w.boundAttempts(200 * time.Millisecond)
		switch way {
		case "looked up":
			w.lookupFirst = 0
		case "with decisions":
			w.decide = func([]pipeline.Event) Recorder { return &books{} }
		}
		writers[way] = w
	}
	return r, writers
}

// The standby is away: a COMMIT waits for it past every bound, and is answered when it is back. Nothing is done twice.
func TestCommitWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	r, writers := onReplicated(t)
	r.Detach()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outs := map[string]<-chan written{}
	for way, w := range writers {
		outs[way] = writing(ctx, w, events(3))
	}
	// That is past the deadline of Write.
	pgtest.Until(t, r.Primary, waitingSQL+` and clock_timestamp() - state_change > interval '3 s'`, len(writers))
	for way, w := range writers {
		select {
		case got := <-outs[way]:
			t.Errorf("%s: Write = %s, %v while the standby is away; want it to wait", way, outcomes(got.verdicts), got.err)
		default:
		}
		if err := w.Trouble(); err == nil || !strings.Contains(err.Error(), "standby") {
			t.Errorf("%s: Trouble = %v, want the standby named", way, err)
		}
	}
	if n := scan[int](t, r.Primary, waitingSQL); n != len(writers) {
		t.Errorf("%d COMMITs wait, want %d still", n, len(writers))
	}
	r.Attach()
	for way, out := range outs {
		if got := <-out; got.err != nil || outcomes(got.verdicts) != "sss" {
			t.Errorf("%s: Write = %s, %v; want sss", way, outcomes(got.verdicts), got.err)
		}
		pgtest.Eventually(t, way+": no trouble once the standby is back", func() bool {
			return writers[way].Trouble() == nil
		})
	}
	checkRows(t, r.Standby, 9)
}

// The wait for the standby is given up, by whoever: what is committed on the primary alone is not acknowledged, however
// often it is sent, until the standby has it.
func TestCommittedOnThePrimaryAloneIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	r, writers := onReplicated(t)
	r.Detach()
	sent := map[string][]pipeline.Event{}
	for way, w := range writers {
		es := events(2)
		sent[way] = es
		ctx, cancel := context.WithCancel(t.Context())
		out := writing(ctx, w, es)
		pgtest.Until(t, r.Primary, waitingSQL, 1)
		exec(t, r.Primary, `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
		pgtest.Eventually(t, way+": its doubt waits for the standby", func() bool {
			return counterValue(t, w.m.waitingCommits) == 1 && scan[int](t, r.Primary, waitingSQL) == 1
		})
		cancel()
		if got := <-out; !errors.Is(got.err, pipeline.ErrUnavailable) {
			t.Errorf("%s: the wait was cancelled, and Write = %s, %v; want ErrUnavailable",
				way, outcomes(got.verdicts), got.err)
		}
		exec(t, r.Primary, endSQL)
		pgtest.Until(t, r.Primary, waitingSQL, 0)
		const oursSQL = `select count(*) from events where event_id = any ($1)`
		if n := scan[int](t, r.Primary, oursSQL, []pipeline.UUID{es[0].ID, es[1].ID}); n != 2 {
			t.Fatalf("%s: %d rows on the primary, want 2: it is not what the test is about", way, n)
		}
	}
	for way, w := range writers {
		ctx, cancel := context.WithCancel(t.Context())
		out := writing(ctx, w, sent[way])
		pgtest.Until(t, r.Primary, waitingSQL, 1)
		cancel()
		if got := <-out; !errors.Is(got.err, pipeline.ErrUnavailable) {
			t.Errorf("%s: a repeat while the standby is away = %s, %v; want ErrUnavailable",
				way, outcomes(got.verdicts), got.err)
		}
		exec(t, r.Primary, endSQL)
		pgtest.Until(t, r.Primary, waitingSQL, 0)
	}
	r.Attach()
	for way, w := range writers {
		checkOutcomes(t, mustWrite(t, w, sent[way]), "dd")
	}
	checkRows(t, r.Primary, 6)
	checkRows(t, r.Standby, 6)
}

// The sessions that wait are ended while they do, as by a restart: what they wrote counts once the standby has it.
func TestSessionThatWaitsForTheStandbyEnds(t *testing.T) {
	t.Parallel()
	r, writers := onReplicated(t)
	r.Detach()
	outs := map[string]<-chan written{}
	for way, w := range writers {
		w.cfg.Deadline = time.Minute
		outs[way] = writing(t.Context(), w, events(2))
	}
	pgtest.Until(t, r.Primary, waitingSQL, len(writers))
	exec(t, r.Primary, endSQL)
	pgtest.Until(t, r.Primary, `select count(*) = 6 from events`)
	pgtest.Until(t, r.Primary, waitingSQL, len(writers))
	for way, out := range outs {
		select {
		case got := <-out:
			t.Errorf("%s: Write = %s, %v while the standby is away", way, outcomes(got.verdicts), got.err)
		default:
		}
	}
	r.Attach()
	for way, out := range outs {
		if got := <-out; got.err != nil || outcomes(got.verdicts) != "ss" {
			t.Errorf("%s: Write = %s, %v; want ss", way, outcomes(got.verdicts), got.err)
		}
	}
	checkRows(t, r.Standby, 6)
}

// The standby is cut off under load, the primary lost, and the standby promoted: it has everything that was
// acknowledged.
func TestAcknowledgedOutlivesAFailover(t *testing.T) {
	t.Parallel()
	r, writers := onReplicated(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var acknowledged []pipeline.UUID
	enough := func(n int) {
		t.Helper()
		pgtest.Eventually(t, "events are acknowledged", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) >= n
		})
	}
	var load sync.WaitGroup
	for _, w := range writers {
		load.Go(func() {
			for ctx.Err() == nil {
				es := events(5)
				verdicts, err := w.Write(ctx, es)
				if err != nil {
					continue
				}
				mu.Lock()
				for i, v := range verdicts {
					if v.Outcome == pipeline.Stored || v.Outcome == pipeline.Duplicate {
						acknowledged = append(acknowledged, es[i].ID)
					}
				}
				mu.Unlock()
			}
		})
	}
	enough(300)
	r.Detach()
	pgtest.Until(t, r.Primary, waitingSQL, len(writers))
	exec(t, r.Primary, `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
	pgtest.Until(t, r.Primary, waitingSQL, len(writers))
	r.Promote()
	cancel()
	load.Wait()
	const thereSQL = `select count(*) from events where event_id = any ($1)`
	if n := scan[int](t, r.Standby, thereSQL, acknowledged); n != len(acknowledged) {
		t.Errorf("%d of %d acknowledged events are on the standby that was promoted", n, len(acknowledged))
	}
}
