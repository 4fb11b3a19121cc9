package ingest

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/tenants"
)

// TestRevokedKeyIsRefused: within the reload, on new requests and on streams that are open; a file that is at fault
// changes nothing.
func TestRevokedKeyIsRefused(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), nil)
	reload := func(text string) error {
		return d.server.Reload(func() (tenants.Set, error) { return tenants.Parse("tenants.yaml", text) })
	}
	revoked, stays := d.stream(t, "X-Write-Key", "KEY_A"), d.stream(t, "X-Write-Key", "KEY_B")
	for _, k := range []*talk{revoked, stays} {
		k.send("{\"event_name\":\"x\"}\n")
		if l := k.read(); l.Stored != 1 {
			t.Fatalf("line %+v; want one event stored", l)
		}
	}
	if err := reload("tenants: []"); err == nil || testutil.ToFloat64(d.metrics.reloadOK) != 0 {
		t.Errorf("error %v, reload_ok %v; want the fault of the file and 0", err, testutil.ToFloat64(d.metrics.reloadOK))
	}
	if r := d.post(`{"event_name":"x"}`, "X-Write-Key", "KEY_A"); r.status != 200 {
		t.Errorf("after a reload of a bad file: %d; want 200 as before", r.status)
	}
	if err := reload(fmt.Sprintf("tenants:\n  - {id: 2, name: b, keys: [\"sha256:%x\", \"sha256:%x\"]}\n",
		sha256.Sum256([]byte("KEY_B")), sha256.Sum256([]byte("KEY_NEW")))); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(d.metrics.reloadOK); got != 1 {
		t.Errorf("reload_ok is %v; want 1", got)
	}
	for key, want := range map[string]int{"KEY_A": 401, "KEY_B": 200, "KEY_NEW": 200} {
		if r := d.post(`{"event_name":"x"}`, "X-Write-Key", key); r.status != want {
			t.Errorf("%s: %d; want %d", key, r.status, want)
		}
	}
	if l := revoked.read(); l.Status != 401 || l.Index != 1 {
		t.Errorf("the open stream of the key that is gone: %+v; want 401 and index 1", l)
	}
	stays.send("{\"event_name\":\"x\"}\n")
	if l := stays.read(); l.Stored != 1 {
		t.Errorf("the other stream: %+v; want one event stored", l)
	}
	stays.body.Close()
	revoked.body.Close()
}

// TestReloadKeepsWhatWasUsedOfLimits: a tenant in debt has its debt after a reload that changes something else.
func TestReloadKeepsWhatWasUsedOfLimits(t *testing.T) {
	d := limited(t, nil)
	before := d.server.limiter(1)
	if before == nil {
		t.Fatal("the tenant has no limits")
	}
	file := func(rate int) func() (tenants.Set, error) {
		return func() (tenants.Set, error) {
			return tenants.Parse("tenants.yaml", fmt.Sprintf("tenants:\n  - {id: 1, name: a, keys: [\"sha256:%x\"], "+
				"limits: {events-per-second: %d}}\n", sha256.Sum256([]byte("KEY_C")), rate))
		}
	}
	if err := d.server.Reload(file(10)); err != nil || d.server.limiter(1) != before {
		t.Errorf("error %v; want the limiter from before for limits that stay", err)
	}
	if err := d.server.Reload(file(20)); err != nil || d.server.limiter(1) == before {
		t.Errorf("error %v; want a new limiter for new limits", err)
	}
}
