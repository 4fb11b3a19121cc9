// Package wait has the two ways in which a goroutine of this program waits for something that is not a value: for a
// time, and for a nudge.
package wait

import (
	"context"
	"time"
)

// For waits for d and reports true, or false as soon as ctx ends. A d of 0 or less waits for nothing.
func For(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Nudge puts a token into a channel that has room for it and drops it otherwise. With a capacity of one for each
// goroutine that receives, a full channel means that all of them will look anyway. A nudge is a hint: who waits for
// it has to look by itself now and then.
func Nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
