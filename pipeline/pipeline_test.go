package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestUUIDRoundTrip(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 123e6, time.UTC)
	for _, u := range []UUID{{}, NewUUIDv4(), NewUUIDv7(now), HashUUID("order-17"), {0: 0xff, 15: 0xab}} {
		got, ok := ParseUUID(u.String())
		if !ok || got != u {
			t.Errorf("ParseUUID(%q) = %v, %v; want the same", u.String(), got, ok)
		}
		if got, ok := ParseUUID(strings.ToUpper(u.String())); !ok || got != u {
			t.Errorf("ParseUUID of upper case %q = %v, %v; want the same", u, got, ok)
		}
	}
	if got, ok := NewUUIDv7(now).Time(); !ok || !got.Equal(now) {
		t.Errorf("time inside a UUIDv7 = %v, %v; want %v", got, ok, now)
	}
	if _, ok := NewUUIDv4().Time(); ok {
		t.Error("a UUIDv4 holds no time, but Time gave one")
	}
}

func TestParseUUIDRefuses(t *testing.T) {
	for _, s := range []string{
		"", "50172", "not-a-uuid", "0190163d-8694-739b-aea5-966c26f8ad9", "0190163d-8694-739b-aea5-966c26f8ad911",
		"0190163d8694-739b-aea5-966c26f8ad91-", "0190163d-8694-739b-aea5-966c26f8ad9g",
		"{190163d-8694-739b-aea5-966c26f8ad9}",
		"0190163d-8694-739b-aea5-966c26f8ad\x00\x00",
	} {
		if u, ok := ParseUUID(s); ok {
			t.Errorf("ParseUUID(%q) = %v; want a refusal", s, u)
		}
	}
}

func TestHashUUIDIsVersion8(t *testing.T) {
	u := HashUUID("order-17")
	if u != HashUUID("order-17") || u == HashUUID("order-18") {
		t.Fatal("HashUUID must be a function of its argument, and tell two arguments apart")
	}
	if u[6]>>4 != 8 || u[8]>>6 != 2 {
		t.Fatalf("HashUUID = %v; want version 8, variant 2", u)
	}
}

func TestEventAsItWasPosted(t *testing.T) {
	at := time.Date(2026, 11, 30, 13, 0, 0, 120000, time.FixedZone("", 3600))
	id, _ := ParseUUID("0190163d-8694-739b-aea5-966c26f8ad91")
	check := func(e Event, want string) {
		t.Helper()
		if got := string(e.AppendJSON([]byte("x"))); got != "x"+want {
			t.Errorf("%+v is written\n%s, want\n%s", e, got, "x"+want)
		}
	}
	check(Event{ID: id, Name: "n", OccurredAt: at},
		`{"event_id":"0190163d-8694-739b-aea5-966c26f8ad91","event_name":"n",`+
			`"occurred_at":"2026-11-30T12:00:00.00012Z"}`)
	check(Event{ID: id, Name: "n", OccurredAt: at, TimeUnknown: true, ReceivedAt: at.Add(time.Second)},
		`{"event_id":"0190163d-8694-739b-aea5-966c26f8ad91","event_name":"n",`+
			`"occurred_at":"2026-11-30T12:00:00.00012Z"}`)
	check(Event{ID: id, ClientID: "order\n17", Name: `"ž"<`, OccurredAt: at, TimeUnknown: true, ReceivedAt: at,
		AnonymousID: "a", UserID: "u", SessionID: "s", PageURL: "p", Referrer: "r", UserAgent: "ua",
		Properties: []byte(`{"n": 1.50}`)},
		`{"event_id":"order\n17","event_name":"\"ž\"<","anonymous_id":"a","user_id":"u","session_id":"s",`+
			`"page_url":"p","referrer":"r","user_agent":"ua","properties":{"n": 1.50}}`)
}

func TestOverloadedIs(t *testing.T) {
	err := fmt.Errorf("buffer: %w", &Overloaded{RetryAfter: time.Second, Remedy: "raise buffer.max-bytes"})
	if !errors.Is(err, ErrOverloaded) || errors.Is(err, ErrClosed) {
		t.Fatalf("errors.Is on %v does not tell ErrOverloaded from ErrClosed", err)
	}
}

// TestImports holds the layering: the root imports the standard library and jsontext, a stage imports the root and no
// other stage, but evaluate imports rules, which is pure. pgx stays where SQL runs and fasthttp at the edge and in
// the sender. An operator's tool imports stages, and no package inside one but what replays rules. Of other tools it
// imports those that every change goes through, audit, nodes and tune; doctor, which asks all others, imports any.
// Nothing imports a program, and only the lab the benchmarks.
func TestImports(t *testing.T) {
	const format = "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}"
	out, err := exec.Command("go", "list", "-f", format, "sluice.example/sluice/...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	sql := []string{"copyin", "evaluate", "claim", "retain", "schema"}
	http := []string{"ingest", "deliver"}
	shared := []string{"audit", "nodes", "tune"} // of operate/, for every tool
	// Of internal/, for every stage.
	mechanisms := []string{"certfile", "duration", "jsontext", "pgcopy", "pgsession", "pgtx", "spell", "tenants",
		"timetext", "tracecontext", "wait", "yamlfile"}
	const jsontext = "sluice.example/sluice/internal/jsontext"
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		pkg, imports := f[0], f[1:]
		stage, isStage := strings.CutPrefix(pkg, "sluice.example/sluice/pipeline/")
		stage, _, _ = strings.Cut(stage, "/")
		for _, imp := range imports {
			own := strings.HasPrefix(imp, "sluice.example/sluice/")
			std := !own && !strings.Contains(strings.SplitN(imp, "/", 2)[0], ".")
			mechanism, _ := strings.CutPrefix(imp, "sluice.example/sluice/internal/")
			inside := strings.HasPrefix(imp+"/", "sluice.example/sluice/pipeline/"+stage+"/") ||
				stage == "evaluate" && imp == "sluice.example/sluice/pipeline/rules"
			tool := strings.HasPrefix(pkg, "sluice.example/sluice/operate/")
			other, _ := strings.CutPrefix(imp, "sluice.example/sluice/operate/")
			beneath := tool && (slices.Contains(shared, other) || pkg == "sluice.example/sluice/operate/doctor")
			within, ofStage := strings.CutPrefix(imp, "sluice.example/sluice/pipeline/")
			switch {
			case strings.HasPrefix(imp, "sluice.example/sluice/cmd/"):
				t.Errorf("%s imports %s; nothing imports a program", pkg, imp)
			case strings.HasPrefix(imp, "sluice.example/sluice/bench") && pkg != "sluice.example/sluice/cmd/lab" &&
				!strings.HasPrefix(pkg, "sluice.example/sluice/bench"):
				t.Errorf("%s imports %s; only cmd/lab measures", pkg, imp)
			case tool && ofStage && strings.Contains(within, "/") && within != "rules/replay":
				t.Errorf("%s imports %s; a tool imports stages, and nothing inside them but rules/replay", pkg, imp)
			case strings.HasPrefix(imp, "sluice.example/sluice/operate/") && pkg != "sluice.example/sluice/cmd/pipeline" &&
				pkg != "sluice.example/sluice/cmd/lab" && !strings.HasPrefix(pkg, "sluice.example/sluice/bench") &&
				pkg != "sluice.example/sluice/console" && !beneath:
				t.Errorf("%s imports %s; only programs, the console and doctor import the operators' tools", pkg, imp)
			case strings.HasPrefix(imp, "sluice.example/sluice/console") && pkg != "sluice.example/sluice/cmd/pipeline" &&
				!strings.HasPrefix(pkg, "sluice.example/sluice/console"):
				t.Errorf("%s imports %s; only the daemon imports the console", pkg, imp)
			case pkg == "sluice.example/sluice/pipeline" && !std && imp != jsontext:
				t.Errorf("%s imports %s; the root imports only the standard library and %s", pkg, imp, jsontext)
			case pkg == jsontext && !std:
				t.Errorf("%s imports %s; what the root imports, imports only the standard library", pkg, imp)
			case isStage && own && imp != "sluice.example/sluice/pipeline" && !inside && !slices.Contains(mechanisms, mechanism):
				t.Errorf("%s imports %s; a stage imports the root and internal/%s, and nothing else of ours",
					pkg, imp, strings.Join(mechanisms, ", internal/"))
			case stage == "rules" && strings.HasPrefix(imp, "github.com/prometheus/"):
				t.Errorf("%s imports %s; rules are pure, and counting is for others", pkg, imp)
			case isStage && strings.HasPrefix(imp, "github.com/jackc/pgx/") && !slices.Contains(sql, stage):
				t.Errorf("%s imports %s; no SQL runs there", pkg, imp)
			case isStage && strings.HasPrefix(imp, "github.com/valyala/fasthttp") && !slices.Contains(http, stage):
				t.Errorf("%s imports %s; fasthttp stays at the edge and in the sender", pkg, imp)
			}
		}
	}
}

// As JSON a UUID is its text, not an array of 16 numbers.
func TestUUIDAsJSON(t *testing.T) {
	u := HashUUID("order-17")
	text, err := json.Marshal(map[UUID]*UUID{u: &u})
	if want := `{"` + u.String() + `":"` + u.String() + `"}`; err != nil || string(text) != want {
		t.Errorf("JSON is %s, %v; want %s", text, err, want)
	}
	var back map[UUID]UUID
	if err := json.Unmarshal(text, &back); err != nil || back[u] != u {
		t.Errorf("read again it is %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`"order-17"`), &u); err == nil {
		t.Error("what is no UUID was read")
	}
}
