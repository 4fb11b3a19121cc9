package claim

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
)

// A claim begins where the last one ended. What lies before, an expired lease or a message that was committed late, is
// found within the second.
func TestCursor(t *testing.T) {
	pool := pgtest.New(t)
	q := newQueue(t, pool)
	insert(t, pool, "crm", 300)
	exec(t, pool, `update outbox set run_after = now() - interval '1 hour'`) // all at once
	seen := map[int64]bool{}
	for range 3 {
		leases := claim(t, q, "crm", 100)
		if len(leases) != 100 {
			t.Fatalf("claimed %d; want 100", len(leases))
		}
		for _, l := range leases {
			if seen[l.ID] {
				t.Fatalf("message %d was given out twice", l.ID)
			}
			seen[l.ID] = true
		}
	}
	if n := testutil.ToFloat64(q.metrics.fullClaims); n > 2 {
		t.Errorf("%v of 3 claims began at the beginning; want the first, and one more at most", n)
	}
	exec(t, pool, `update outbox set locked_until = now() - interval '1 second' where dedupe_key = 'crm:1'`)
	insertMore(t, pool, 1)
	exec(t, pool, `update outbox set run_after = now() - interval '2 hours' where dedupe_key not like 'crm:%'`)
	found := 0
	for deadline := time.Now().Add(30 * time.Second); found < 2 && time.Now().Before(deadline); {
		found += len(claim(t, q, "crm", 100))
	}
	if found != 2 {
		t.Errorf("%d messages before the cursor were found; want 2", found)
	}
}

func TestCursorSteps(t *testing.T) {
	var c cursor
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	start := func(wantTime time.Time, wantID int64, wantFull bool) {
		t.Helper()
		if at, id, full := c.start(now); !at.Equal(wantTime) || id != wantID || full != wantFull {
			t.Fatalf("start = %v, %d, %t; want %v, %d, %t", at, id, full, wantTime, wantID, wantFull)
		}
	}
	start(time.Time{}, 0, true)
	c.ended(now, true, true, now.Add(-time.Hour), 17, 10*time.Millisecond, time.Minute)
	start(now.Add(-time.Hour), 17, false)
	c.ended(now, false, true, now.Add(-time.Minute), 18, time.Millisecond, time.Minute)
	start(now.Add(-time.Minute), 18, false)
	c.ended(now, false, false, now, 19, time.Millisecond, time.Minute) // the end of the backlog
	start(now.Add(-slack), 0, false)
	c.ended(now, false, false, time.Time{}, 0, time.Millisecond, time.Minute) // nothing
	start(now.Add(-slack), 0, false)
	c.ended(now, false, false, now.Add(-slack), 20, time.Millisecond, time.Minute) // never back
	start(now.Add(-slack), 0, false)
	now = now.Add(fullEvery)
	start(time.Time{}, 0, true)
	c.ended(now, true, false, time.Time{}, 0, 500*time.Millisecond, time.Minute) // slow: the next in 10 s
	start(time.Time{}, 0, false)
	now = now.Add(9 * time.Second)
	start(time.Time{}, 0, false)
	now = now.Add(time.Second)
	start(time.Time{}, 0, true)
	c.ended(now, true, false, time.Time{}, 0, time.Hour, 30*time.Second)
	now = now.Add(30 * time.Second)
	start(time.Time{}, 0, true)
}
