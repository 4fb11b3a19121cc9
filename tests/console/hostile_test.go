package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/pgtest"
)

// corpus is text that breaks pages, wherever a stranger can write it. Each has a mark by which it is found again.
var corpus = []string{
	`<img src=x onerror="alert('one')">mark-one`,
	`</script><script>alert("two")</script>mark-two`,
	`"><svg/onload=alert(3)>'mark-three`,
	`</textarea></title></style><iframe src="javascript:alert(4)"></iframe>mark-four`,
	`{{.}}${alert(5)}javascript:alert(5)//mark-five`,
	"\u202egnp.exe\u2066\u200b\ufeffmark-six",
	"\x01\x1b[31m\x7f\u0085mark-seven",
	"\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 e\u0301 mark-eight",
	strings.Repeat("W", 700) + "mark-nine",
	`../../%2e%2e/?q=<b>#&amp;&lt;mark-ten`,
}

// startHostile starts a pipeline whose database has the corpus wherever text can be, by posts and by SQL.
func startHostile(t *testing.T) *child.Process {
	t.Helper()
	db := pgtest.New(t)
	p := startPipeline(t, db.Config().ConnString(), "--roles", "ingest,sweep,console", "--console.payloads", "shown",
		"--console.name", `<i onclick="alert(1)">prod</i>`)
	deep := strings.Repeat(`{"a":[`, 30) + `"</script>"` + strings.Repeat(`]}`, 30)
	for i, text := range corpus {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"event_id":"hostile-%d","event_name":%s,"user_id":%s,"properties":{%s:%s,"n":9007199254740993,
			"deep":%s,"long":"%s"}}`, i, quoted, quoted, quoted, quoted, deep, strings.Repeat("x", 20_000))
		r, err := http.Post(p.Events(), "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var answer bytes.Buffer
		_, _ = answer.ReadFrom(r.Body)
		r.Body.Close()
		// The door refuses one that is too long for a name; it is in the other tables.
		if r.StatusCode != http.StatusOK {
			t.Logf("%.60q: %d %.300s", text, r.StatusCode, answer.String())
		}
		for _, sql := range []string{
			`insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, headers, status, last_error,
				rule_id, attempts, finished_at) values (1, $1, left($1, 200), $1, $1, jsonb_build_object($1::text, $1::text),
				jsonb_build_object('x-h', $1::text), 'dead', $1, $1, 1, now())`,
			`insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status, error)
				select message_id, 1, now(), 0.1, 'failed', 500, $1 from outbox where type = $1`,
			`insert into quarantine (tenant_id, event_id, occurred_at, event, sqlstate, reason)
				values (1, gen_random_uuid(), now(), convert_to(jsonb_build_object('event_name', $1::text)::text, 'UTF8'),
					'22P05', $1)`,
			`insert into rule_status (rule_id, hash, kind, state, owner, response, seen_at, failing_at, last_error,
				last_error_at) values ($1, $1, 'event', 'active', $1, $1, now(), now(), $1, now())`,
			`insert into operator_audit (actor, via, action, target, why, before)
				values ($1, 'command', $1, $1, $1, to_jsonb($1::text))`,
			`insert into sluice_processes (process_id, name, address, version, writes, started_at, seen_at)
				values (gen_random_uuid(), $1, $1, $1, false, now(), now())`,
		} {
			if _, err := db.Exec(t.Context(), sql, text); err != nil {
				t.Fatalf("%s\n%v", sql, err)
			}
		}
	}
	if _, err := db.Exec(t.Context(), `update outbox m set event_id = e.event_id, event_occurred_at = e.occurred_at
		from events e where m.type = e.event_name`); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestHostileData: whatever strangers write is shown as text, on every page that links lead to, and runs nowhere.
func TestHostileData(t *testing.T) {
	t.Parallel()
	p := startHostile(t)
	texts, err := json.Marshal(corpus)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Pages  []string
		Markup []string
		// Shown is how many pages show each text of the corpus, Literal how many show it as it is.
		Shown, Literal []int
		Long           bool
	}
	look(t, "hostile", p.Console, &got, "TEXTS="+string(texts))
	for _, found := range got.Markup {
		t.Error(found)
	}
	for i, text := range corpus {
		plain := i != 5 && i != 6 // what steers a terminal or a line is shown by its code
		if got.Shown[i] == 0 || plain && got.Literal[i] == 0 {
			t.Errorf("%q is on %d pages, on %d as it is", text, got.Shown[i], got.Literal[i])
		}
	}
	if !got.Long {
		t.Error("9007199254740993 is on no page")
	}
	if len(got.Pages) < 30 {
		t.Errorf("%d pages: %v", len(got.Pages), got.Pages)
	}
	t.Logf("%d pages", len(got.Pages))
}
