package claim

import (
	"time"

	"sluice.example/sluice/pipeline"
)

// cursor is where the claims for one destination begin. The walk along outbox_claimable passes every message finished
// since the oldest snapshot that someone in the database holds: their entries can't be removed while it is held. So a
// claim begins where the last one ended, and only now and then at the very beginning, which is where what lies before
// the cursor is found: expired leases, and messages of transactions that took long to commit.
type cursor struct {
	time   time.Time // (run_after, message_id) has to be beyond this
	id     int64
	fullAt time.Time // the next claim after this begins at the beginning

	order        pipeline.Order // of the last claim
	sweptTenant  int32          // the subject at which the last sweep ended
	sweptSubject string
}

// fullEvery is the least time between two claims from the beginning, and fullShare the part of the time that they may
// take at most: where they are slow they become rare. slack is how far behind the newest message claimed the next walk
// begins where there is no backlog: what was committed in another order than that of run_after is found at once within
// it. The first is the poll interval; the others are guesses.
const (
	fullEvery = time.Second
	fullShare = 20 // one twentieth
	slack     = 2 * time.Second
)

// start returns where a claim at this time begins, and whether that is the beginning.
func (c *cursor) start(now time.Time) (t time.Time, id int64, full bool) {
	if !now.Before(c.fullAt) {
		return time.Time{}, 0, true
	}
	return c.time, c.id, false
}

// ended notes how a claim went: whether it filled its room, the last message that it got (the zero time: none), and how
// long it took. most bounds the time between two full claims.
func (c *cursor) ended(now time.Time, full, filled bool, lastTime time.Time, lastID int64, took, most time.Duration) {
	if full {
		c.time, c.id = time.Time{}, 0
		c.fullAt = now.Add(min(max(fullEvery, fullShare*took), most))
	}
	switch {
	case lastTime.IsZero():
	case filled:
		c.time, c.id = lastTime, lastID
	default:
		if t := lastTime.Add(-slack); t.After(c.time) {
			c.time, c.id = t, 0
		}
	}
}
