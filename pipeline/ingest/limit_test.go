package ingest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/tenants"
)

func TestLimiterHoldsTheRateOverTime(t *testing.T) {
	start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	l := newLimiter(tenants.Limits{EventsPerSecond: 100, BytesPerSecond: 10_000}, start)
	events, requests := 0, 0
	for ms := range 60_000 {
		if now := start.Add(time.Duration(ms) * time.Millisecond); l.wait(now) == 0 {
			n := 1 + requests%400 // far more than a second's worth now and then
			l.spend(n, 10*n)
			events += n
			requests++
		}
	}
	if events < 5900 || events > 6000+100+400 {
		t.Errorf("%d events in 60 s at 100/s; want about 6,000", events)
	}
	now := start.Add(time.Hour)
	if w := l.wait(now); w != 0 {
		t.Errorf("after an hour: wait %s; want none", w)
	}
	l.spend(1, 30_000)
	if w := l.wait(now); w != 2*time.Second {
		t.Errorf("with a debt of 20,000 bytes at 10,000/s: wait %s; want 2 s", w)
	}
	if w := (*limiter)(nil).wait(now); w != 0 {
		t.Errorf("without limits: wait %s; want none", w)
	}
}

func TestTenantsDoNotShareLimits(t *testing.T) {
	auth, err := tenants.Parse("tenants.yaml", fmt.Sprintf("tenants:\n  - {id: 1, name: a, keys: [%q], limits: "+
		"{events-per-second: 10}}\n  - {id: 2, name: b, keys: [%q], limits: {bytes-per-second: 100}}\n  - {id: 3, name: "+
		"c, keys: [%q]}\n",
		hashed("a"), hashed("b"), hashed("c")))
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{}
	d := open(t, m, auth, nil)
	many := "[" + strings.Repeat(`{"event_name":"x"},`, 4999) + `{"event_name":"x"}]`
	for _, key := range []string{"a", "b", "c"} {
		if r := d.post(many, "X-Write-Key", key); r.status != 200 {
			t.Errorf("%s: the first request: %d; want 200", key, r.status)
		}
	}
	for key, want := range map[string]int{"a": 429, "b": 429, "c": 200} {
		r := d.post(`{"event_name":"x"}`, "X-Write-Key", key)
		after, _ := strconv.Atoi(r.header.Get("Retry-After"))
		if r.status != want || want == 429 && after < 100 {
			t.Errorf("%s: the second request: %d, Retry-After %d; want %d and, for a debt of 500 s or 950 s, at least 100",
				key, r.status, after, want)
		}
	}
	if got := testutil.ToFloat64(d.metrics.limited.WithLabelValues("1")); got != 1 {
		t.Errorf("pipeline_ingest_rate_limited_requests_total{tenant=1} = %v; want 1", got)
	}
}
