package claim

import (
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// However few messages match, a statement for an operator looks at 100,000 at most, and reports how far it got, so that
// the next one goes on. Dead messages are found wherever they are.
func TestOperatorsStatementsAreBounded(t *testing.T) {
	pool := pgtest.New(t)
	exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload, status, last_error)
		select 1, case when i = 10 then 'rare' else 't' end, i::text, 'crm', '{}',
			case when i in (5, 10) then 'dead' else 'sent' end, case when i in (5, 10) then 'HTTP 410' end
		from generate_series(1, 150000) i`)
	rare := Filter{Type: "rare"}
	list, reached, err := List(t.Context(), pool, rare, 0, 50)
	if err != nil || len(list) != 0 || reached != 50_001 {
		t.Fatalf("List = %d messages, reached %d, %v; want none of the newest 100,000, down to 50001", len(list),
			reached, err)
	}
	list, reached, err = List(t.Context(), pool, rare, reached, 50)
	if err != nil || len(list) != 1 || list[0].ID != 10 || reached != 0 {
		t.Errorf("List before 50001 = %+v, reached %d, %v; want message 10, and no more to look at", list, reached, err)
	}
	list, reached, err = List(t.Context(), pool, Filter{}, 0, 50)
	if err != nil || len(list) != 50 || reached != 0 {
		t.Errorf("List of all = %d messages, reached %d, %v; want a full page", len(list), reached, err)
	}
	list, reached, err = List(t.Context(), pool, Filter{Statuses: []string{"dead"}, Error: "410"}, 0, 50)
	if err != nil || len(list) != 2 || reached != 0 {
		t.Errorf("List of dead ones = %d messages, reached %d, %v; want both at once", len(list), reached, err)
	}
	list, _, err = List(t.Context(), pool, Filter{Statuses: []string{"dead"}, Destination: "other"}, 0, 50)
	if err != nil || len(list) != 0 {
		t.Errorf("List of another destination's dead ones = %d messages, %v; want none", len(list), err)
	}

	step, err := Retry(t.Context(), pool, Filter{Type: "t", NewerThan: 1}, 0, 50) // made within a nanosecond
	if want := (Step{Changed: 0, Last: 100_000, Done: false}); err != nil || step != want {
		t.Errorf("Retry = %+v, %v; want %+v", step, err, want)
	}
	step, err = Retry(t.Context(), pool, Filter{Type: "t", NewerThan: 1}, step.Last, 50)
	if want := (Step{Changed: 0, Last: 100_000, Done: true}); err != nil || step != want {
		t.Errorf("Retry after 100000 = %+v, %v; want %+v", step, err, want)
	}
	step, err = Retry(t.Context(), pool, Filter{Statuses: []string{"dead"}, Type: "rare"}, 0, 50)
	if want := (Step{Changed: 1, Last: 10, Done: true}); err != nil || step != want {
		t.Errorf("Retry of dead ones = %+v, %v; want %+v", step, err, want)
	}
	step, err = Discard(t.Context(), pool, Filter{Statuses: []string{"dead"}}, 0, 50)
	if want := (Step{Changed: 1, Last: 5, Done: true}); err != nil || step != want {
		t.Errorf("Discard of dead ones = %+v, %v; want %+v", step, err, want)
	}
}
