package deliver

import (
	"fmt"
	"time"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/wait"
)

// What follows changes a Dispatcher while it runs. All of it is safe for concurrent use.

// Pause stops or resumes a destination, whatever its file says: a paused one claims nothing more, and what is held for
// it is still sent.
func (d *Dispatcher) Pause(destination string, paused bool) error {
	l, err := d.lane(destination)
	if err != nil {
		return err
	}
	l.pause(paused)
	return nil
}

// Unpause leaves it to the file again.
func (d *Dispatcher) Unpause(destination string) error {
	l, err := d.lane(destination)
	if err != nil {
		return err
	}
	l.pause(l.d.paused)
	return nil
}

// Probe tries a destination whose circuit breaker is open now instead of later. It does nothing to one that is closed.
func (d *Dispatcher) Probe(destination string) error {
	l, err := d.lane(destination)
	if err != nil {
		return err
	}
	if l.breaker.halfOpen() {
		l.reopenIn(0)
	}
	return nil
}

// SetClaimBatch changes deliver.claim-batch; 0 is what the configuration says.
func (d *Dispatcher) SetClaimBatch(n int) error {
	if n < 0 {
		return fmt.Errorf("deliver.claim-batch is %d: set it to at least 1", n)
	}
	if n == 0 {
		n = d.cfg.ClaimBatch
	}
	d.claimBatch.Store(int64(n))
	return nil
}

func (d *Dispatcher) lane(destination string) (*lane, error) {
	if l, ok := d.lanes[destination]; ok {
		return l, nil
	}
	names := make([]string, len(d.order))
	for i, l := range d.order {
		names[i] = l.d.Name
	}
	return nil, fmt.Errorf("no destination %q is configured here%s", destination, spell.DidYouMean(destination, names))
}

func (l *lane) pause(paused bool) {
	shown := 0.0
	if paused {
		shown = 1
	}
	l.mu.Lock()
	l.paused = paused
	l.dirty = true
	l.pausedGauge.Set(shown)
	l.mu.Unlock()
	wait.Nudge(l.freed)
}

// halfOpen ends the pause of a breaker that is open, and reports whether it was.
func (b *breaker) halfOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == 0 {
		return false
	}
	b.until = time.Time{}
	return true
}
