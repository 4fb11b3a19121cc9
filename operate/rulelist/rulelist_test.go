package rulelist

import (
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// A rule that no pipeline reports any more is not shown as active, half a minute after it was taken out.
func TestRemovedRulesAreNotActive(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const statusSQL = `
insert into rule_status (rule_id, hash, kind, state, owner, response, seen_at) values
    ('t/kept', 'h1', 'event', 'active', 'me', 'https://wiki', now() - interval '9 seconds'),
    ('t/gone', 'h2', 'event', 'active', 'me', 'https://wiki', now() - interval '30 seconds'),
    ('t/away', 'h3', 'event', 'shadow', 'me', 'https://wiki', now() - interval '3 days')`
	if _, err := pool.Exec(t.Context(), statusSQL); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	list, err := Read(t.Context(), conn.Conn())
	if err != nil {
		t.Fatal(err)
	}
	inForce := map[string]bool{}
	for _, r := range list {
		inForce[r.ID] = r.InForce()
	}
	if len(list) != 3 || list[0].ID != "t/kept" || !inForce["t/kept"] || inForce["t/gone"] || inForce["t/away"] {
		t.Errorf("in force: %v, in this order: %+v; want t/kept alone, and first", inForce, list)
	}
	var out strings.Builder
	if err := list.Print(&out); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"t/kept event active ok", "t/gone event not in force for 30s -",
		"t/away event not in force for 3d -"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
