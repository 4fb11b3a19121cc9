package deliver

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// claimer claims for some of the lanes: one for all that keep no order, whose claims cost what they lease and share a
// statement, and one for each of the others, so that no claim waits for a slow one.
type claimer struct {
	lanes        []*lane
	nudge, freed chan struct{}
	starved      atomic.Bool // a lane has no room for bytes, or the claimer is just looking
}

func newClaimer() *claimer {
	return &claimer{nudge: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// claim keeps a claimer's lanes filled until ctx ends. A claim that is under way then still ends, within working: what
// it leased has to be given back.
func (d *Dispatcher) claim(ctx, working context.Context, c *claimer) {
	backoff := firstBackoff
	c.wake()
	for turn := 0; ctx.Err() == nil; turn++ {
		if wants := d.wants(c, turn); len(wants) > 0 {
			began := time.Now()
			leases, err := d.queue.Claim(working, wants)
			if err == nil {
				d.hand(leases, wants)
				d.claimed(wants)
				backoff = firstBackoff
				continue
			}
			d.claimed(wants)
			for _, w := range wants {
				d.lanes[w.Destination].wake()
			}
			d.metrics.claimErrors.Inc()
			d.log.Warn("deliver: claim failed, trying again", "in", backoff, "error", err)
			if c != d.claimers[0] {
				// What is slow leaves half of its time, and so the connections, to others.
				backoff = max(backoff, time.Since(began))
			}
			wait.For(ctx, backoff)
			backoff = min(2*backoff, lastBackoff)
			continue
		}
		timer := time.NewTimer(d.cfg.PollInterval - time.Duration(rand.Float64()*float64(d.cfg.PollInterval)/4))
		select {
		case <-ctx.Done():
		case <-c.nudge:
			c.wake()
		case <-timer.C:
			c.wake()
		case <-c.freed:
		}
		timer.Stop()
	}
}

func (c *claimer) wake() {
	for _, l := range c.lanes {
		l.wake()
	}
}

// claimed notes that a claim has ended, and what it brought is counted as held.
func (d *Dispatcher) claimed(wants []pipeline.Want) {
	d.asking.Lock()
	for _, w := range wants {
		d.claiming -= w.Room
		d.promised[d.lanes[w.Destination].place] = 0
	}
	d.asking.Unlock()
}
