package evaluate

import (
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// TestAFailingRuleIsSeen: a rule that fails on every event is called failing, with a sample of why; the one beside it
// decides about all of them.
func TestAFailingRuleIsSeen(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e, reg := engineWith(t, load(t, "version: 1\nruleset: t\nrules:\n"+oneRule("bad",
		"match: event.properties.a > 1")+oneRule("good")), nil)
	var events []pipeline.Event
	for range 200 {
		events = append(events, event("x", "u", ""))
	}
	mustCommit(t, db, e, events...)
	for range 2 { // a second report must not repeat the first
		if err := e.report(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	wantRows(t, query(t, db, `select concat_ws(' ', s.rule_id, s.state, s.owner, s.failing_at is not null,
		left(last_error, 30), h.evaluated, h.messages, h.errors)
		from rule_status s left join rule_hours h using (rule_id) order by 1`),
		"t/bad active me t expression: no such key: a (ev 200 0 200", "t/good active me f 200 200 0")
	if got := counted(t, reg, "pipeline_evaluate_rule_failing", "t/bad"); got != 0 {
		t.Errorf("still failing after a report without events: %v", got)
	}
	mustCommit(t, db, e, events...)
	if err := e.report(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if bad, good := counted(t, reg, "pipeline_evaluate_rule_failing", "t/bad"),
		counted(t, reg, "pipeline_evaluate_rule_failing", "t/good"); bad != 1 || good != 0 {
		t.Errorf("failing: bad %v, good %v; want 1 and 0", bad, good)
	}
}
