package deliver

import (
	"context"
	"time"

	"sluice.example/sluice/internal/wait"
)

// extend keeps the leases of what is held alive until finished is closed: four times in a lease it extends those that
// have less than half of it left. Work that goes as it should ends long before that.
func (d *Dispatcher) extend(ctx context.Context, finished <-chan struct{}) {
	tick := time.NewTicker(max(d.lease/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
		}
		for _, l := range d.order {
			d.extendLane(ctx, l, time.Now().Add(d.lease/2))
		}
	}
}

func (d *Dispatcher) extendLane(ctx context.Context, l *lane, endBefore time.Time) {
	ending := l.ending(endBefore)
	if len(ending) == 0 {
		return
	}
	ends, err := d.queue.Extend(ctx, ending)
	if err != nil {
		// Each lease is checked again before its message is sent.
		d.log.Warn("deliver: leases not extended", "destination", l.d.Name, "leases", len(ending), "error", err)
		return
	}
	lost := l.extended(ending, ends)
	if len(lost) == 0 {
		return
	}
	d.metrics.lostLeases.Add(float64(len(lost)))
	d.log.Warn("deliver: other workers took messages that were held here", "destination", l.d.Name, "messages",
		len(lost))
	bytes := 0
	for i := range lost {
		bytes += weight(&lost[i])
	}
	d.held.Add(-int64(len(lost)))
	d.bytes.Add(l.place, -bytes)
	if l.recorded(len(lost), false) {
		wait.Nudge(l.freed)
	}
}
