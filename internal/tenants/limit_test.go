package tenants

import (
	"testing"
	"time"
)

func TestLimiterHoldsTheRateOverTime(t *testing.T) {
	start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	l := NewLimiter(Limits{EventsPerSecond: 100, BytesPerSecond: 10_000}, start)
	events, requests := 0, 0
	for ms := range 60_000 {
		if now := start.Add(time.Duration(ms) * time.Millisecond); l.Wait(now) == 0 {
			n := 1 + requests%400 // far more than a second's worth now and then
			l.Spend(n, 10*n)
			events += n
			requests++
		}
	}
	if events < 5900 || events > 6000+100+400 {
		t.Errorf("%d events in 60 s at 100/s; want about 6,000", events)
	}
	now := start.Add(time.Hour)
	if w := l.Wait(now); w != 0 {
		t.Errorf("after an hour: wait %s; want none", w)
	}
	l.Spend(1, 30_000)
	if w := l.Wait(now); w != 2*time.Second {
		t.Errorf("with a debt of 20,000 bytes at 10,000/s: wait %s; want 2 s", w)
	}
	if w := (*Limiter)(nil).Wait(now); w != 0 {
		t.Errorf("without limits: wait %s; want none", w)
	}
}
