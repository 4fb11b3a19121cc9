package ingest

import (
	"fmt"
	"strings"
	"testing"

	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/pipeline"
)

func TestCloudEventsMapping(t *testing.T) {
	const structured, batch = "application/cloudevents+json; charset=utf-8", "application/cloudevents-batch+json"
	const head = `"specversion":"1.0","type":"com.example.paid","source":"/shop","id":"17"`
	const shown = `name=com.example.paid client_id=/shop 17 at=`
	for _, tt := range []struct{ text, want string }{
		{`{` + head + `,"time":"2026-11-30T11:00:00Z","data":{"n":1.10}}`, shown +
			`2026-11-30T11:00:00Z props={"$cloudevent":{"specversion":"1.0","source":"/shop","id":"17"},"n":1.10}`},
		{`{` + head + `,"data":"text","subject":"s","userid":"u","anonymousid":"a",` +
			`"sessionid":"x","ext":true,"dataschema":null}`,
			shown + `unknown anon=a user=u session=x props={"$cloudevent":{"specversion":"1.0","source":"/` +
				`shop","id":"17","data":"text","subject":"s","userid":"u","anonymousid":"a","sessionid":"x","ext":true}}`},
		{`{` + head + `,"data_base64":"AAE="}`, shown + `unknown props={"$cloudevent":{"specversion":"1.0","source":"/` +
			`shop","id":"17","data_base64":"AAE="}}`},
		{`{` + head + `,"data":null}`, shown + `unknown props={"$cloudevent":{"specversion":"1.0","source":"/` +
			`shop","id":"17"}}`},
	} {
		for media, text := range map[string]string{structured: tt.text, batch: "[" + tt.text + "]"} {
			d, events := shaped(t, &cloudevents, "", text, "Content-Type", media)
			if len(events) != 1 || show(events[0]) != tt.want {
				t.Errorf("%s:\ngot  %s, rejected %+v\nwant %s", text, show(append(events, pipeline.Event{})[0]), d.rejected,
					tt.want)
			}
		}
	}
	for _, tt := range []struct{ text, field string }{
		{`{"specversion":"0.3","type":"t","source":"/s","id":"1"}`, "specversion"}, {`{"type":"t","source":"/s","id":"1"}`,
			"specversion"},
		{`{"specversion":"1.0","source":"/s","id":"1"}`, "type"}, {`{"specversion":"1.0","type":"t","id":"1"}`, "source"},
		{`{"specversion":"1.0","type":"t","source":"/s","id":""}`, "id"},
		{`{"specversion":"1.0","type":"t","source":"a b","id":"1"}`, "source"},
		{`{"specversion":"1.0","type":"t","source":"/s","id":"1","time":"x"}`, "time"},
		{`{"specversion":"1.0","type":"t","source":"/s","id":"1","data":"\u0000"}`, "data"}, {`7`, ""},
	} {
		if d, events := shaped(t, &cloudevents, "", `[{`+head+`},`+tt.text+`]`, "Content-Type", batch); len(events) != 1 ||
			len(d.rejected) != 1 || d.rejected[0].field != tt.field {
			t.Errorf("%s: %d events, rejected %+v; want field %q", tt.text, len(events), d.rejected, tt.field)
		}
	}
}

func TestCloudEventsBinaryMode(t *testing.T) {
	head := []string{"ce-specversion", "1.0", "ce-type", "t", "ce-source", "/s", "ce-id", "1", "ce-time",
		"2026-11-30T11:00:00Z"}
	const shown = `name=t client_id=/s 1 at=2026-11-30T11:00:00Z `
	for _, tt := range []struct {
		body, want string
		headers    []string
	}{
		{`{"n":1}`, shown + `props={"$cloudevent":{"specversion":"1.0","source":"/` +
			`s","id":"1","datacontenttype":"application/json"},"n":1}`, []string{"Content-Type", "application/json"}},
		{` [1] `, shown + `props={"$cloudevent":{"specversion":"1.0","source":"/` +
			`s","id":"1","datacontenttype":"application/x+json","data": [1]}}`, []string{"Content-Type", "application/x+json"}},
		{`a "b"`, shown + `props={"$cloudevent":{"specversion":"1.0","source":"/s","id":"1","datacontenttype":"text/` +
			`plain","data":"a \"b\""}}`, []string{"Content-Type", "text/plain"}},
		{"\x00\x01", shown + `props={"$cloudevent":{"specversion":"1.0","source":"/` +
			`s","id":"1","datacontenttype":"application/octet-stream","data_base64":"AAE="}}`, []string{"Content-Type",
			"application/octet-stream"}},
		{"", shown + `props={"$cloudevent":{"specversion":"1.0","source":"/s","id":"1","subject":"Euro € 😀 %41 \"q\""}}`,
			[]string{"ce-subject", `"Euro%20%E2%82%AC %F0%9F%98%80 %2541 \"q\""`}},
	} {
		d, events := shaped(t, &cloudevents, "", tt.body, append(tt.headers, head...)...)
		if len(events) != 1 {
			t.Errorf("%q: rejected %+v", tt.body, d.rejected)
			continue
		}
		// Headers come in no order.
		got := show(events[0])
		if len(got) != len(tt.want) || !strings.HasPrefix(got, shown) {
			t.Errorf("%q:\ngot  %s\nwant %s, in any order of the attributes", tt.body, got, tt.want)
		}
		for _, part := range strings.Split(strings.NewReplacer(`{`, `,`, `}`, `,`).Replace(tt.want[len(shown):]), ",") {
			if !strings.Contains(got, part) {
				t.Errorf("%q:\ngot  %s\nwithout %s", tt.body, got, part)
			}
		}
	}
}

// TestOffsetsOfBinaryMode count from the first byte of the body, which holds the data alone. What is wrong with a
// header has none.
func TestOffsetsOfBinaryMode(t *testing.T) {
	const none = "-"
	for _, tt := range []struct {
		media, body, at string
		more            []string
	}{
		{"application/json", `{"a":[1,"\u0000"]}`, `\u0000`, nil},
		{"application/json", "\xef\xbb\xbf " + `{"a":[1,"\u0000"]}`, `\u0000`, nil},
		{"application/json", `"\ud800"`, `\ud800`, nil},
		{"text/plain", "a\n\"\\u0000 \x00 b", "\x00", nil},
		{"text/plain", "\x00", "\x00", nil},
		{"application/json", `{"a":1}`, none, []string{"ce-subject", "a%00"}},
		{"text/plain", `a`, none, []string{"ce-subject", "a%00"}},
		{"image/png", "\x00\x01", none, []string{"ce-subject", "a%00"}},
		{"", "", none, []string{"ce-subject", "a%00"}},
	} {
		headers := append([]string{"ce-specversion", "1.0", "ce-type", "t", "ce-source", "/s", "ce-id", "1"}, tt.more...)
		if tt.media != "" {
			headers = append(headers, "Content-Type", tt.media)
		}
		d, _ := shaped(t, &cloudevents, "", tt.body, headers...)
		if len(d.rejected) != 1 {
			t.Errorf("%q: rejected %+v; want one", tt.body, d.rejected)
			continue
		}
		reason := d.rejected[0].reason
		if tt.at == none {
			if strings.Contains(reason, "at byte") {
				t.Errorf("%q, %v: %q; want no byte of the body", tt.body, tt.more, reason)
			}
			continue
		}
		if want := fmt.Sprintf("at byte %d of the body", strings.Index(tt.body, tt.at)); !strings.Contains(reason, want) {
			t.Errorf("%q: %q; want %q", tt.body, reason, want)
		}
	}
}

func TestCloudEventsOverHTTP(t *testing.T) {
	auth, err := tenants.Parse("tenants.yaml", "tenants: [{id: 5, name: a, keys: ["+hashed("key")+"]}]")
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{}
	d := open(t, m, auth, nil)
	event := `{"specversion":"1.0","type":"t","source":"/s","id":"1"}`
	binary := []string{"ce-specversion", "1.0", "ce-type", "t", "ce-source", "/s", "ce-id", "1"}
	for _, tt := range []struct {
		path, body string
		headers    []string
		status     int
	}{
		{"?access_token=key", event, []string{"Content-Type", "application/cloudevents+json"}, 200},
		{"", event, []string{"Content-Type", "application/cloudevents+json", "Authorization", "Bearer key"}, 200},
		{"", event, []string{"Content-Type", "application/cloudevents+json"}, 401},
		{"?access_token=key", `[]`, []string{"Content-Type", "application/cloudevents-batch+json"}, 200},
		{"?access_token=key", `{"a":1}`, append([]string{"Content-Type", "application/json"}, binary...), 200},
		{"?access_token=key", `{"a":1},"id":"2"`, append([]string{"Content-Type", "application/json"}, binary...), 400},
		{"?access_token=key", `x`, append([]string{"Content-Type", "text/plain", "ce-subject", "%ff"}, binary...), 400},
		{"?access_token=key", `{}`, []string{"Content-Type", "application/json"}, 415},
		{"?access_token=key", `x`, []string{"Content-Type", "application/cloudevents+avro"}, 415},
		{"?access_token=key", `{}`, []string{"Content-Type", "application/cloudevents+json"}, 422},
	} {
		if r := d.do("POST", "/v1/cloudevents"+tt.path, strings.NewReader(tt.body), tt.headers...); r.status != tt.status {
			t.Errorf("%s %q %q: %d %s; want %d", tt.path, tt.headers, tt.body, r.status, r.body, tt.status)
		}
	}
	_, r := d.raw("OPTIONS /v1/cloudevents HTTP/1.1\r\nHost: x\r\nWebHook-Request-Origin: " +
		"eventemitter.example.com\r\n\r\n")
	line, err := r.ReadString('\n')
	if err != nil || !strings.Contains(line, " 200 ") {
		t.Errorf("a sender that asks whether it may: %q, %v; want 200", line, err)
	}
	var rest strings.Builder
	for line != "\r\n" && err == nil {
		line, err = r.ReadString('\n')
		rest.WriteString(strings.ToLower(line))
	}
	if !strings.Contains(rest.String(), "webhook-allowed-origin: eventemitter.example.com\r\n") {
		t.Errorf("headers %q; want WebHook-Allowed-Origin", rest.String())
	}
}
