package buffer

import (
	"fmt"
	"time"
)

// What follows changes a Buffer while it runs. All of it is safe for concurrent use.

// SetMaxEvents changes buffer.max-events for batches that are open from now on; 0 is what the configuration says.
func (b *Buffer) SetMaxEvents(n int) error {
	if n < 0 {
		return fmt.Errorf("buffer.max-events is %d: set at least 1", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n == 0 {
		n = b.cfg.MaxEvents
	}
	b.maxEvents = n
	b.m.maxEvents.Set(float64(n))
	return nil
}

// SetMaxWait changes buffer.max-wait, Auto among its values.
func (b *Buffer) SetMaxWait(d time.Duration) error {
	if d != Auto && d < 0 {
		return fmt.Errorf("buffer.max-wait is %s: set 0 or more, or auto", d)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.auto = d == Auto; !b.auto {
		b.maxWait = d
		b.m.maxWait.Set(d.Seconds())
	}
	return nil
}
