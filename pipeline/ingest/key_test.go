package ingest

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"sluice.example/sluice/internal/tenants"
)

func twoTenants(t *testing.T) tenants.Set {
	t.Helper()
	set, err := tenants.Parse("tenants.yaml", fmt.Sprintf(
		"tenants:\n  - {id: 1, name: a, keys: [\"sha256:%x\"]}\n  - {id: 2, name: b, keys: [\"sha256:%x\"]}\n",
		sha256.Sum256([]byte("KEY_A")), sha256.Sum256([]byte("KEY_B"))))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestKeyInsideAnItemIsNotTheRequests sends items that name another tenant than the request does.
func TestKeyInsideAnItemIsNotTheRequests(t *testing.T) {
	m := &memory{}
	d := open(t, m, twoTenants(t), nil)
	call := func(key string) string {
		return `{"type":"track","event":"e","userId":"u","writeKey":"` + key + `"}`
	}
	for _, body := range []string{
		`{"writeKey":"KEY_A","batch":[` + call("KEY_A") + `,` + call("KEY_B") + `]}`,
		`{"batch":[` + call("KEY_B") + `,` + call("garbage") + `],"writeKey":"KEY_A"}`,
	} {
		if r := d.do("POST", "/v1/batch", strings.NewReader(body)); r.status != 200 || r.json.Stored != 2 {
			t.Errorf("%s: %d %s; want 200", body, r.status, r.body)
		}
	}
	for _, e := range m.events {
		if e.Tenant != 1 {
			t.Errorf("an event of tenant %d; want 1, whose key the request has", e.Tenant)
		}
	}
	two := `{"batch":[` + call("KEY_A") + `,` + call("KEY_B") + `]}`
	if r := d.do("POST", "/v1/batch", strings.NewReader(two)); r.status != 401 {
		t.Errorf("two keys in the items and none in the request: %d %s; want 401", r.status, r.body)
	}
	body := `[42, {"event":"x","properties":{"token":"KEY_B","distinct_id":"d"}}]`
	if r := d.do("POST", "/e/", strings.NewReader(body)); r.status != 200 || r.json.Stored != 1 ||
		r.json.Rejected != 1 || r.json.Events[0].Index != 0 {
		t.Errorf("a number before an event with its key: %d %s; want 1 stored, index 0 rejected", r.status, r.body)
	}
}
