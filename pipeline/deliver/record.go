package deliver

import (
	"context"
	"errors"
	"slices"
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
		held := d.finish(ctx, results)
		if len(held) > 0 {
			// They wait alone.
			d.log.Warn("deliver: others hold the rows of messages whose results are to be recorded; trying again",
				"results", len(held), "message", held[0], "remedy", "end the transaction that holds them")
			kept := slices.Clone(batch)
			batch = slices.DeleteFunc(batch, func(r done) bool { return slices.Contains(held, r.MessageID) })
			kept = slices.DeleteFunc(kept, func(r done) bool { return !slices.Contains(held, r.MessageID) })
			d.recorders.Go(func() { d.recordHeld(ctx, kept) })
		}
		d.logDead(batch)
		d.free(batch)
	}
}

// logDead logs that messages were given up: one line for all that were recorded together.
func (d *Dispatcher) logDead(batch []done) {
	var first *done
	dead := 0
	for i := range batch {
		if batch[i].Status == pipeline.Dead {
			dead++
			if first == nil {
				first = &batch[i]
			}
		}
	}
	if dead > 0 {
		d.log.Warn("deliver: messages were given up", "messages", dead, "message", first.MessageID, "destination",
			first.lane.d.Name, "error", first.Error, "remedy", "pipeline outbox list --status dead; then outbox retry")
	}
}

// recordHeld records results of messages whose rows somebody else holds, however long that takes.
func (d *Dispatcher) recordHeld(ctx context.Context, batch []done) {
	d.metrics.rowsHeld.Add(float64(len(batch)))
	for backoff := firstBackoff; len(batch) > 0; backoff = min(2*backoff, lastBackoff) {
		wait.For(ctx, backoff)
		results := make([]pipeline.Result, len(batch))
		for i := range batch {
			results[i] = batch[i].Result
		}
		held := []int64{}
		if ctx.Err() == nil {
			held = d.finish(ctx, results)
		} else {
			d.giveUp(len(results))
		}
		ended := slices.Clone(batch)
		ended = slices.DeleteFunc(ended, func(r done) bool { return slices.Contains(held, r.MessageID) })
		batch = slices.DeleteFunc(batch, func(r done) bool { return !slices.Contains(held, r.MessageID) })
		d.metrics.rowsHeld.Sub(float64(len(ended)))
		d.free(ended)
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
// claimed than there is room for. It returns the messages that it could not record, since somebody holds their rows.
func (d *Dispatcher) finish(ctx context.Context, results []pipeline.Result) (held []int64) {
	for backoff := firstBackoff; ; backoff = min(2*backoff, lastBackoff) {
		_, err := d.queue.Finish(ctx, results)
		if err == nil {
			return nil
		}
		var rows *pipeline.RowsHeldError
		if errors.As(err, &rows) {
			return rows.Messages
		}
		d.metrics.recordErrors.Inc()
		d.log.Warn("deliver: results not recorded, trying again", "results", len(results), "in", backoff, "error", err)
		if !wait.For(ctx, backoff) {
			d.giveUp(len(results))
			return nil
		}
	}
}

func (d *Dispatcher) giveUp(results int) {
	d.metrics.unrecorded.Add(float64(results))
	d.log.Error("deliver: stopped without recording results; their messages will be delivered again", "results", results)
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
