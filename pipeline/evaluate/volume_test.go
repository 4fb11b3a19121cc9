package evaluate

import (
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
		found, err := LintVolume(t.Context(), conn.Conn(), rule(minimum))
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
