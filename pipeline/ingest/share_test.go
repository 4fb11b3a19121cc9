package ingest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

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

// TestBodiesWithoutAKeyRefuseNobodyElse lets 48 clients that never say who they are send most of a body each.
func TestBodiesWithoutAKeyRefuseNobodyElse(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), func(c *Config) {
		c.MaxBodyBytes, c.MaxDecodedBytes, c.MaxReadingBytes = 4<<20, 8<<20, 40<<20
	})
	for range 48 {
		d.raw("POST /v1/batch HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(" ", 900_000))
	}
	unknown := &d.server.reader.shares.unknown
	for deadline := time.Now().Add(30 * time.Second); unknown.inUse.Load() < unknown.most/2; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are counted as nobody's; want more", unknown.inUse.Load())
		}
	}
	if got := unknown.inUse.Load(); got > unknown.most {
		t.Errorf("bodies without a key hold %d bytes; want at most %d", got, unknown.most)
	}
	body := `[{"event_name":"x","properties":{"a":"` + strings.Repeat("a", 35_000) + `"}}]`
	for range 20 {
		if r := d.post(body, "X-Write-Key", "KEY_A"); r.status != 200 {
			t.Fatalf("an honest client beside them: %d %s; want 200", r.status, r.body)
		}
	}
}

func TestBodyWithoutAKeyIsSmall(t *testing.T) {
	d := open(t, &memory{}, twoTenants(t), nil)
	long := strings.Repeat("a", 600_000)
	event := `{"type":"track","event":"e","userId":"u","properties":{"a":"` + long + `"}}`
	batch := `"batch":[` + event + `,` + event + `,` + event + `]`
	for body, want := range map[string]int{
		`{` + batch + `}`:                                400,
		`{` + batch + `,"writeKey":"KEY_A"}`:             400, // too late
		`{"writeKey":"KEY_A",` + batch + `}`:             200,
		`{"writeKey": "KEY_A", "batch":[` + event + `]}`: 200,
	} {
		if r := d.do("POST", "/v1/batch", strings.NewReader(gz(body)), "Content-Encoding", "gzip"); r.status != want {
			t.Errorf("%.40s...: %d %s; want %d", body, r.status, r.body, want)
		}
	}
	form := "data=" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", 30<<20)))
	if r := d.do("POST", "/e/", strings.NewReader(gz(form)), "Content-Encoding", "gzip"); r.status != 413 {
		t.Errorf("30 MB of a form: %d %s; want 413", r.status, r.body)
	}
	if got := d.server.reader.inUse.Load(); got != 0 {
		t.Errorf("%d bytes are still counted; want 0", got)
	}
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
