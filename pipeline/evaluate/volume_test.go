package evaluate

import (
	"fmt"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline/rules"
)

// TestLintVolume: 30 checkouts an hour for three days are too few for a minimum of 200. What a rise has to reach is
// reached by the rise; what its window has no room for can never be.
func TestLintVolume(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	fire := "{drop: 30%}"
	rule := func(minimum string) *rules.Set {
		return load(t, "version: 1\nruleset: t\nrules:\n  - {id: r, owner: me, response: r.md, kind: rate, send_to: crm, "+
			"numerator: {on: a}, denominator: {on: b}, fire: "+fire+",\n     minimum: "+minimum+"}\n")
	}
	check := func(minimum, want string) {
		t.Helper()
		found, err := LintStored(t.Context(), conn.Conn(), rule(minimum))
		if err != nil || len(found) > 1 || (len(found) == 1) != (want != "") || want != "" &&
			!strings.Contains(found[0].String(), want) {
			t.Errorf("with minimum %s: %v, %v; want %q", minimum, found, err, want)
		}
	}
	check("{denominator: 200}", "") // nothing is counted yet
	metric := rule("{denominator: 200}").Rates()[0].Rate.Metric
	if _, err := db.Exec(t.Context(), `insert into rate_minutes (metric, tenant_id, minute, shard, n, x, late_n, late_x)
		select $1, 1, date_trunc('hour', now()) - i * interval '2 minutes', i % 3, 1, i % 2, 0, 0
			from generate_series(1, 72 * 30) i`, metric); err != nil {
		t.Fatal(err)
	}
	check("{denominator: 200}", "rules.yaml:5:15: rules[r].minimum: reached by 0 of 7")
	check("{denominator: 200}", "on average: make it about 7h long, or lower the minimum")
	check("{denominator: 20}", "")
	check("{denominator: 20, expected_numerator: 100000}", "too little for a rate rule")
	check("{denominator: 20, expected_numerator: 25}", "reached by 0 of 7")
	fire = "{rise: 30%}"
	check("{denominator: 20, expected_numerator: 25}", "")
	check("{denominator: 200}", "make it about 7h long")
	check("{denominator: 20, expected_numerator: 100}", "make it about 4h long")
}

// TestLintSettle: half of the purchases arrive 20 minutes late, so a window that is judged 5 minutes after its end
// looks like a drop. Imports, what is older than the baseline, other events and those that do not match have no say.
func TestLintSettle(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const purchase = `{on: buy, match: "event.properties.n < 500"}`
	check := func(counted, settle, want string) {
		t.Helper()
		set := load(t, "version: 1\nruleset: t\nrules:\n  - {id: r, owner: me, response: r.md, kind: rate, send_to: crm, "+
			"fire: {drop: 30%},\n     count: "+counted+", baseline: {step: 1d, periods: 3}"+settle+"}\n")
		found, err := LintStored(t.Context(), conn.Conn(), set)
		if err != nil || (len(found) == 1) != (want != "") || !strings.Contains(fmt.Sprint(found), want) {
			t.Errorf("of %s, with %q: %v, %v; want %q", counted, settle, found, err, want)
		}
	}
	store := func(name string, from, to int, ago, every, late string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `with stored as (
			select i, now() - $4::interval - i * $5::interval as at from generate_series($2::int, $3::int) i)
			insert into events (event_id, tenant_id, event_name, occurred_at, received_at, properties)
			select gen_random_uuid(), 1, $1, at, at + $6::interval, jsonb_build_object('n', i) from stored`,
			name, from, to, ago, every, late); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(t.Context(), `select create_events_partition((now() at time zone 'UTC')::date - i)
		from generate_series(0, 6) i`); err != nil {
		t.Fatal(err)
	}
	check(purchase, "", "") // nothing is stored yet
	store("buy", 1, 49, "1 hour", "1 second", "20 minutes 10 seconds")
	check(purchase, "", "") // too few
	store("buy", 50, 200, "1 hour", "1 second", "20 minutes 10 seconds")
	store("buy", 201, 400, "1 hour", "1 second", "10 milliseconds")
	store("buy", 401, 499, "1 hour", "1 second", "30 hours")      // imported
	store("buy", 300, 499, "100 hours", "1 second", "40 minutes") // before the baseline
	store("buy", 500, 900, "1 hour", "1 second", "50 minutes")    // no match
	store("view", 1, 400, "1 hour", "1 second", "50 minutes")     // not counted
	const warning = "windows are judged 5m after their end, but of the stored events of the last days that the rule " +
		"counts, 1 in 100 arrives 20m10s late or later (p99), which would look like a drop: set settle: 21m"
	check(purchase, "", "rules.yaml:4:5: rules[r].settle: "+warning)
	check(purchase, ", settle: 5m", ": rules[r].settle: "+warning)
	check(purchase, ", settle: 21m", "")
	check("{on: buy}", "", "set settle: 50m")
}
