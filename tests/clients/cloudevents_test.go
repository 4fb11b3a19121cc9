package clients

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

func cloudEvent(t *testing.T, source, id, media string, data any) cloudevents.Event {
	t.Helper()
	e := cloudevents.NewEvent()
	e.SetSource(source)
	e.SetID(id)
	e.SetType("com.example.order.paid")
	e.SetTime(time.Now())
	e.SetSubject("Ü \"order\" 17%")
	e.SetExtension("userid", "u1")
	if err := e.SetData(media, data); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCloudEvents(t *testing.T) {
	t.Parallel()
	url, pool := start(t, 0, nil)
	url += "/v1/cloudevents"
	client, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(url))
	if err != nil {
		t.Fatal(err)
	}
	order := map[string]any{"cents": 4900, "title": "Ü 😀 \\u0000"}
	for id, mode := range map[string]func(context.Context) context.Context{"binary": binding.WithForceBinary,
		"structured": binding.WithForceStructured} {
		for _, e := range []cloudevents.Event{
			cloudEvent(t, "/shop", id, cloudevents.ApplicationJSON, order),
			cloudEvent(t, "/other", id, cloudevents.ApplicationJSON, order), // one id, another source
			cloudEvent(t, "/text", id, cloudevents.TextPlain, "a \"text\""),
			cloudEvent(t, "/bytes", id, "application/octet-stream", []byte{0, 1, 255}),
		} {
			for range 2 { // the second is a duplicate
				if result := client.Send(mode(t.Context()), e); !cloudevents.IsACK(result) {
					t.Errorf("%s, %s: %v; want it acknowledged", id, e.Source(), result)
				}
			}
		}
	}
	bad := cloudEvent(t, "/shop", "bad", cloudevents.ApplicationJSON, map[string]any{"k": "\x00"})
	var status *cehttp.Result
	if result := client.Send(binding.WithForceStructured(t.Context()), bad); cloudevents.IsACK(result) ||
		!cloudevents.ResultAs(result, &status) || status.StatusCode != 422 {
		t.Errorf("an event with U+0000: %v; want 422", result)
	}
	req, err := cehttp.NewHTTPRequestFromEvents(t.Context(), url, []cloudevents.Event{
		cloudEvent(t, "/shop", "binary", cloudevents.ApplicationJSON, order), // its time is another, so its key is
		cloudEvent(t, "/shop", "batch", cloudevents.ApplicationJSON, order),
	})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 ||
		!strings.HasPrefix(string(text), `{"stored":2,`) {
		t.Errorf("a batch: %d %s, %v; want two stored", resp.StatusCode, text, err)
	}
	for _, tt := range []struct{ sql, want string }{
		{`select count(*)::text from events`, "10"},
		{`select string_agg(distinct client_id, ', ' order by client_id) from events where client_id like '/shop %'
			or client_id like '/other %'`,
			"/other binary, /other structured, /shop batch, /shop binary, /shop structured"},
		{`select string_agg(distinct (properties - '$cloudevent')::text, '; ') from events where client_id like '/shop %'`,
			`{"cents": 4900, "title": "Ü 😀 \\u0000"}`},
		{`select string_agg(distinct properties->'$cloudevent'->>'data', '; ') from events where client_id like '/text %'`,
			`a "text"`},
		{`select string_agg(distinct properties->'$cloudevent'->>'data_base64', '; ') from events
			where client_id like '/bytes %'`, "AAH/"},
		{`select string_agg(distinct concat_ws(' ', event_name, user_id, properties->'$cloudevent'->>'subject'), '; ')
			from events`, `com.example.order.paid u1 Ü "order" 17%`},
	} {
		if got := query(t, pool, tt.sql); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.sql, got, tt.want)
		}
	}
}
