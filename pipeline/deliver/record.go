package deliver

import (
	"context"
	"time"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// record writes results to the queue until there are no more, or until ctx ends while the queue refuses them. While
// one statement runs, the results of the next gather; after a pause, the first one waits recordWait for others, unless
// nothing else is held.
func (d *Dispatcher) record(ctx context.Context) {
	batch, results := make([]done, 0, recordBatch), make([]pipeline.Result, 0, recordBatch)
	for first := range d.results {
		batch, results = d.gather(append(batch[:0], first)), results[:0]
		for i := range batch {
			results = append(results, batch[i].Result)
		}
		d.finish(ctx, results)
		d.free(batch)
	}
}

// gather adds what else is there, waiting for it for a moment.
func (d *Dispatcher) gather(batch []done) []done {
	timer := time.NewTimer(recordWait)
	defer timer.Stop()
	for len(batch) < recordBatch && len(batch) < int(d.held.Load()) {
		select {
		case r, ok := <-d.results:
			if !ok {
				return batch
			}
			batch = append(batch, r)
		case <-timer.C:
			return batch
		}
	}
	return batch
}

// finish records one batch, however often that takes. Its leases count as held meanwhile, so that nothing more is
// claimed than there is room for.
func (d *Dispatcher) finish(ctx context.Context, results []pipeline.Result) {
	for backoff := firstBackoff; ; backoff = min(2*backoff, lastBackoff) {
		_, err := d.queue.Finish(ctx, results)
		if err == nil {
			return
		}
		d.metrics.recordErrors.Inc()
		d.log.Warn("deliver: results not recorded, trying again", "results", len(results), "in", backoff, "error", err)
		if !wait.For(ctx, backoff) {
			d.metrics.unrecorded.Add(float64(len(results)))
			d.log.Error("deliver: stopped without recording results; their messages will be delivered again", "results",
				len(results))
			return
		}
	}
}

// free gives the room of recorded results back, and wakes the claimer where that is worth a claim.
func (d *Dispatcher) free(batch []done) {
	byLane, passed := map[*lane]int{}, map[*lane]bool{}
	bytes := map[*lane]int{}
	for i := range batch {
		r := &batch[i]
		byLane[r.lane]++
		bytes[r.lane] += r.bytes
		if r.Passes() {
			passed[r.lane] = true
		}
	}
	full := int(d.held.Load()) >= d.maxHeld
	d.held.Add(-int64(len(batch)))
	for l, n := range bytes {
		d.bytes.Add(l.place, -n)
		l.bytesGauge.Set(float64(d.bytes.Held(l.place)))
	}
	for l, n := range byLane {
		if l.recorded(n, passed[l]) {
			wait.Nudge(l.freed)
		}
	}
	for _, c := range d.claimers {
		if full || c.starved.Load() {
			wait.Nudge(c.freed)
		}
	}
}
