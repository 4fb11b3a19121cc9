package evaluate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func TestWarnings(t *testing.T) {
	check := func(rules string, wants ...string) {
		t.Helper()
		set := load(t, rules)
		var got []string
		for _, w := range set.Warnings() {
			got = append(got, w.String())
		}
		if len(got) != len(wants) {
			t.Fatalf("got %d warnings\n%s\nwant %d\nin %s", len(got), strings.Join(got, "\n"), len(wants), rules)
		}
		for i, want := range wants {
			if !strings.Contains(got[i], want) {
				t.Errorf("got %q\nwant %q", got[i], want)
			}
		}
	}
	check(ruleText())
	check(ruleText(`match: event.event_name == "x" && event.user_id == "y"`))
	check(ruleText(`match: event.user_id == "y" || event.event_name == "z"`),
		`rules.yaml:9:56: rules[r].match: the event is never "z" here: the rule listens to x. Add the name to on, or drop the comparison`)
	check(ruleText("match: |", "  true &&", "  event.event_name == 'z'"), `rules.yaml:11:27: rules[r].match: the event is never "z" here`)
	check(strings.Replace(ruleText(`match: event.event_name == "z"`), "on: x", `on: "*"`, 1),
		`rules.yaml:7:9: rules[r].on: "*" costs an evaluation for every event; list`,
		`rules.yaml:7:9: rules[r].on: every event that matches makes a message, also of names that nobody thought of. Add cap or cooldown`,
		`rules.yaml:9:32: rules[r].match: name "z" in on instead`)
	check(strings.Replace(ruleText(`subject: event.user_id`, "cap: {max: 1, per: 1h}"), "on: x", `on: "*"`, 1), `list the names if they are known`)
	check(ruleText("cooldown: 1m"), "wait for each other. Add subject")
}

// TestLintVolume: 30 checkouts an hour for three days are too few for a minimum of 200.
func TestLintVolume(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	rule := func(minimum string) *Set {
		return load(t, "version: 1\nruleset: t\nrules:\n  - {id: r, owner: me, response: r.md, kind: rate, send_to: crm, numerator: {on: a}, denominator: {on: b}, fire: {drop: 30%},\n     minimum: "+minimum+"}\n")
	}
	check := func(minimum, want string) {
		t.Helper()
		found, err := rule(minimum).LintVolume(t.Context(), conn.Conn())
		if err != nil || len(found) > 1 || (len(found) == 1) != (want != "") || want != "" && !strings.Contains(found[0].String(), want) {
			t.Errorf("with minimum %s: %v, %v; want %q", minimum, found, err, want)
		}
	}
	check("{denominator: 200}", "") // nothing is counted yet
	metric := rule("{denominator: 200}").rates[0].Metric
	if _, err := db.Exec(t.Context(), `insert into rate_minutes (metric, tenant_id, minute, shard, n, x, late_n, late_x)
		select $1, 1, date_trunc('hour', now()) - i * interval '2 minutes', i % 3, 1, i % 2, 0, 0 from generate_series(1, 72 * 30) i`, metric); err != nil {
		t.Fatal(err)
	}
	check("{denominator: 200}", "rules.yaml:5:15: rules[r].minimum: reached by 0 of 7")
	check("{denominator: 200}", "on average: make it about 7h long, or lower the minimum")
	check("{denominator: 20}", "")
	check("{denominator: 20, expected_numerator: 100000}", "too little for a rate rule")
}

// TestStarRuleHasLimits: cooldown and cap hold for a rule that listens to every name.
func TestStarRuleHasLimits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	star := func(id, limit string) string {
		return strings.Replace(oneRule(id, "subject: event.user_id", limit), "on: x", `on: "*"`, 1)
	}
	e := engine(t, load(t, "version: 1\nruleset: t\nrules:\n"+star("cool", "cooldown: 1h")+star("capped", "cap: {max: 3, per: 1h}")))
	var batch []pipeline.Event
	for i := range 20 {
		batch = append(batch, pipeline.Event{ID: pipeline.NewUUIDv7(time.Now()), Tenant: 1, Name: fmt.Sprint("name-", i), UserID: fmt.Sprint("u", i%2),
			OccurredAt: time.Now().UTC(), ReceivedAt: time.Now().UTC()})
	}
	mustCommit(t, db, e, batch[:7]...)
	mustCommit(t, db, e, batch[7:]...)
	wantRows(t, query(t, db, `select rule_id || ' ' || subject_key || ' ' || count(*) from outbox group by rule_id, subject_key order by 1`),
		"t/capped u0 3", "t/capped u1 3", "t/cool u0 1", "t/cool u1 1")
}
