package envelope

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

func TestEnvelopes(t *testing.T) {
	key, ok := pipeline.ParseUUID("5a0b0000-0000-4000-8000-000000000001")
	if !ok {
		t.Fatal("no UUID")
	}
	placed := pipeline.Message{ID: 9, Tenant: 2, TenantRef: "customer 17", Type: `order "placed"`,
		SubjectKey: "order:17:x", IdempotencyKey: key, Payload: []byte(`{"n": 1}`),
		CreatedAt: time.Date(2026, 12, 3, 14, 0, 0, 5e6, time.UTC)}
	decided := pipeline.Message{Tenant: 3, Type: "welcome", SubjectKey: "user:ü", Rule: true, IdempotencyKey: key,
		Payload: []byte(`null`), CreatedAt: placed.CreatedAt}
	bare := decided
	bare.SubjectKey = ""
	names := Tenants{2: "acme"}
	const id, at = `"5a0b0000-0000-4000-8000-000000000001"`, `"2026-12-03T14:00:00.005Z"`
	for _, c := range []struct {
		kind Kind
		m    pipeline.Message
		want string
	}{
		{Plain, placed, `{"type":"order \"placed\"","data":{"n": 1}}`},
		{Plain, decided, `{"rule":"welcome","data":null}`},
		{Outbox, placed, `{"id":` + id + `,"type":"order \"placed\"","aggregateType":"order","aggregateId":"17:x",` +
			`"tenantId":"customer 17","payload":{"n": 1}}`},
		{Outbox, decided, `{"id":` + id + `,"type":"welcome","aggregateType":null,"aggregateId":"user:ü",` +
			`"tenantId":"3","payload":null}`},
		{Outbox, bare, `{"id":` + id + `,"type":"welcome","aggregateType":null,"aggregateId":null,"tenantId":"3",` +
			`"payload":null}`},
		{CloudEvents, placed, `{"specversion":"1.0","id":` + id + `,"source":"/tenants/acme",` +
			`"type":"order \"placed\"","subject":"order:17:x","time":` + at + `,"tenantref":"customer 17",` +
			`"datacontenttype":"application/json","data":{"n": 1}}`},
		{CloudEvents, bare, `{"specversion":"1.0","id":` + id + `,"source":"/tenants/3","type":"welcome","time":` + at +
			`,"datacontenttype":"application/json","data":null}`},
		{CloudEventsBinary, placed, `{"n": 1}`},
	} {
		got := string(c.kind.Append(nil, &c.m, names))
		if got != c.want || !json.Valid([]byte(got)) {
			t.Errorf("%s:\n%s; want\n%s", c.kind, got, c.want)
		}
	}
	for kind, want := range map[Kind]map[string]string{
		Plain:       {},
		CloudEvents: {},
		Outbox:      {"X-Event-Id": key.String()},
		CloudEventsBinary: {"Ce-Specversion": "1.0", "Ce-Id": key.String(), "Ce-Source": "/tenants/3", "Ce-Type": "welcome",
			"Ce-Subject": "user:%C3%BC", "Ce-Time": "2026-12-03T14:00:00.005Z", "Ce-Tenantref": ""},
	} {
		got := map[string]string{}
		kind.Headers(func(name, value string) { got[name] = value }, &decided, names)
		if !maps.Equal(got, want) {
			t.Errorf("headers of %s: %v; want %v", kind, got, want)
		}
	}
}
