package audit_test

import (
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/audit"
)

// Rows are added, found by filter and page, and nothing else: not even their owner changes or removes one.
func TestRowsAreOnlyAdded(t *testing.T) {
	pool := pgtest.New(t)
	by := audit.Actor{Name: "ann", Via: audit.Console, Why: "their deploy"}
	for _, target := range []string{"message 1", "message 2", "destination crm"} {
		if err := audit.Write(t.Context(), pool, by, "retry", target, nil, map[string]int{"n": 1}); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{
		`update operator_audit set actor = 'bob'`, `delete from operator_audit`, `truncate operator_audit`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: done; want it refused", sql)
		}
	}
	list, err := audit.List(t.Context(), pool, audit.Filter{Actor: "ann", Target: "message"}, 0, 1)
	if err != nil || len(list) != 1 || list[0].Target != "message 2" || list[0].Why != "their deploy" ||
		string(list[0].After) != `{"n": 1}` || list[0].Before != nil {
		t.Fatalf("List = %+v, %v", list, err)
	}
	list, err = audit.List(t.Context(), pool, audit.Filter{Action: "ret"}, list[0].ID, 10)
	if err != nil || len(list) != 1 || list[0].Target != "message 1" {
		t.Errorf("the next page is %+v, %v", list, err)
	}
	if list, err = audit.List(t.Context(), pool, audit.Filter{Actor: "bob"}, 0, 10); err != nil || len(list) != 0 {
		t.Errorf("of bob there is %+v, %v", list, err)
	}
}
