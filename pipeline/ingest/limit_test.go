package ingest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/tenants"
)

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
		t.Errorf("sluice_ingest_rate_limited_requests_total{tenant=1} = %v; want 1", got)
	}
}
