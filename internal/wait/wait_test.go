package wait

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check := func(ctx context.Context, d time.Duration, want bool, took time.Duration) {
			t.Helper()
			start := time.Now()
			if got := For(ctx, d); got != want || time.Since(start) != took {
				t.Errorf("For(%s) = %v after %s, want %v after %s", d, got, time.Since(start), want, took)
			}
		}
		check(t.Context(), time.Hour, true, time.Hour)
		check(t.Context(), 0, true, 0)
		check(t.Context(), -time.Second, true, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		check(ctx, time.Hour, false, time.Second)
		for range 100 { // with both ready, the end of ctx always counts
			check(ctx, 0, false, 0)
		}
	})
}

func TestNudge(t *testing.T) {
	c := make(chan struct{}, 1)
	Nudge(c)
	Nudge(c) // dropped, and blocks nobody
	<-c
	select {
	case <-c:
		t.Error("a second nudge waited in a channel of capacity one")
	default:
	}
	Nudge(make(chan struct{})) // nobody receives
}
