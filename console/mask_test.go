package console

import (
	"encoding/json"
	"strings"
	"testing"
)

func paths(t testing.TB, texts ...string) [][]string {
	t.Helper()
	all, err := maskPaths(texts)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestMaskJSON(t *testing.T) {
	for _, c := range []struct {
		name, paths, text, want string
	}{
		{"at the top", "email", `{"email":"a@b","n":1}`, `{"email":"•••","n":1}`},
		{"at any depth", "email", `{"a":{"b":[{"email":["x","y"]}]}}`, `{"a":{"b":[{"email":"•••"}]}}`},
		{"objects as a whole", "address", `{"address":{"street":"x"},"b":2}`, `{"address":"•••","b":2}`},
		{"by a way", "properties.email", `{"email":"a","properties":{"email":"b"}}`,
			`{"email":"a","properties":{"email":"•••"}}`},
		{"whatever the case and the joints", "user_agent", `{"userAgent":"a","User-Agent":"b","$user_agent":"c"}`,
			`{"userAgent":"•••","User-Agent":"•••","$user_agent":"•••"}`},
		{"a name twice", "email", `{"email":1,"email":2}`, `{"email":"•••","email":"•••"}`},
		{"an escaped name", "email", `{"\u0065mail":1}`, `{"email":"•••"}`},
		{"long numbers stay", "email", `[12345678901234567890,0.10]`, `[12345678901234567890,0.10]`},
		{"nothing to mask", "email", `{"a":null,"b":[],"c":{}}`, `{"a":null,"b":[],"c":{}}`},
		{"no path", "", `{"email":1}`, `{"email":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := maskJSON([]byte(c.text), paths(t, strings.Fields(c.paths)...))
			if err != nil || string(got) != c.want {
				t.Errorf("maskJSON(%s) = %s, %v; want %s", c.text, got, err, c.want)
			}
		})
	}
	for _, text := range []string{`{"a":`, `{} {}`, `nothing`, strings.Repeat("[", deepest+1)} {
		if got, err := maskJSON([]byte(text), nil); err == nil {
			t.Errorf("maskJSON(%.20s) = %s; want an error", text, got)
		}
	}
}

func TestPayloadsByRole(t *testing.T) {
	text := []byte(`{"email":"ann@example.com","plan":"pro"}`)
	cfg := DefaultConfig()
	for _, c := range []struct {
		role              Role
		operators, viewer string
		want              string
	}{
		{Operator, payloadsMasked, payloadsHidden, `{"email":"•••","plan":"pro"}`},
		{Operator, payloadsShown, payloadsHidden, string(text)},
		{Operator, payloadsHidden, payloadsShown, ""},
		{Viewer, payloadsShown, payloadsHidden, ""},
		{Viewer, payloadsShown, payloadsMasked, `{"email":"•••","plan":"pro"}`},
		{Nobody, payloadsShown, payloadsShown, ""},
	} {
		cfg.Payloads, cfg.ViewerPayloads = c.operators, c.viewer
		console, _, _ := serveConsole(t, cfg, Sources{})
		if got := console.show(c.role, text); string(got.Value) != c.want || c.want == "" && got.Text != "" {
			t.Errorf("%s with %s/%s sees %+v, want %s", c.role, c.operators, c.viewer, got, c.want)
		}
	}
	console, _, _ := serveConsole(t, DefaultConfig(), Sources{})
	if got := console.show(Operator, []byte("no JSON")); got.How != payloadsHidden || got.Text != "" {
		t.Errorf("what is not JSON is shown as %+v; want it hidden", got)
	}
	long := console.show(Operator, []byte(`["`+strings.Repeat("é", longestPayload)+`"]`))
	if !long.Cut || len(long.Text) > longestPayload || long.Value != nil {
		t.Errorf("a long payload: cut %v, %d bytes of text, %d of value", long.Cut, len(long.Text), len(long.Value))
	}
	headers := map[string]string{"Authorization": "Bearer x", "X-Plan": "pro"}
	if got := console.showHeaders(Operator, headers); got["Authorization"] != masked || got["X-Plan"] != "pro" {
		t.Errorf("operators see the headers %v", got)
	}
	if got := console.showHeaders(Viewer, headers); got["X-Plan"] != masked {
		t.Errorf("viewers see the headers %v", got)
	}
}

func TestPayloadSettingsAreChecked(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Payloads, cfg.ViewerPayloads, cfg.Mask = "maskd", "none", []string{"a..b"}
	err := cfg.validate()
	for _, want := range []string{"console.payloads", `did you mean "masked"`, "console.viewer-payloads", "console.mask"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("validate = %v; want %s in it", err, want)
		}
	}
}

// FuzzMaskJSON: what comes out is JSON, masking it again changes nothing, and no value of a masked field is in it.
func FuzzMaskJSON(f *testing.F) {
	f.Add([]byte(`{"email":"a","b":[{"email":{"c":1}}]}`))
	f.Add([]byte(`{"EMail":"\ud800"}`))
	masks := paths(f, "email")
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := maskJSON(text, masks)
		if err != nil {
			return
		}
		again, err := maskJSON(got, masks)
		if err != nil || string(again) != string(got) {
			t.Errorf("maskJSON(%s) = %s, %v", got, again, err)
		}
		var v any
		if err := json.Unmarshal(got, &v); err != nil {
			t.Fatalf("maskJSON(%s) = %s: %v", text, got, err)
		}
		var look func(any)
		look = func(v any) {
			switch v := v.(type) {
			case []any:
				for _, e := range v {
					look(e)
				}
			case map[string]any:
				for name, e := range v {
					if foldName(name) == "email" && e != masked {
						t.Errorf("maskJSON(%s) = %s holds %v", text, got, e)
					}
					look(e)
				}
			}
		}
		look(v)
	})
}
