package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func TestQuarantine(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	const insertSQL = `insert into quarantine (tenant_id, event_id, occurred_at, quarantined_at, event, sqlstate, reason)
		values ($1, $2, now(), now() - $3::float8 * interval '1 day', $4, $5, 'says why')`
	for _, row := range []struct {
		tenant  int
		id      string
		daysAgo float64
		state   string
	}{{1, "new", 0, "22P05"}, {1, "old", 40, "22P05"}, {2, "other", 0, "22003"}} {
		if _, err := conn.Exec(t.Context(), insertSQL, row.tenant, pipeline.HashUUID(row.id), row.daysAgo,
			[]byte(`{"event_id":"`+row.id+`"}`), row.state); err != nil {
			t.Fatal(err)
		}
	}
	run := func(want string, args ...string) {
		t.Helper()
		status, out, errOut := runCommand(t, []string{"DATABASE_URL=" + url}, append([]string{"quarantine"}, args...)...)
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("quarantine %q: status %d, want 0 and %q in\n%s%s", args, status, want, out, errOut)
		}
	}
	run("22P05: says why", "list")
	run("22003: says why", "list", "--tenant", "2")
	run(`"reason": "says why"`, "list", "--json", "--tenant", "2")
	run("[]", "list", "--json", "--event", "unheard of")
	run("nothing is in quarantine", "list", "--event", "unheard of")
	file := filepath.Join(t.TempDir(), "q.ndjson")
	run("", "export", file, "--sqlstate", "22P05")
	if text, err := os.ReadFile(file); err != nil || string(text) != `{"event_id":"old"}`+"\n"+`{"event_id":"new"}`+"\n" {
		t.Errorf("exported %q, %v", text, err)
	}
	run(`{"event_id":"other"}`, "export", "--event", "other")
	run("1 events would be deleted", "delete", "--before", "30d")
	run("1 events deleted", "delete", "--before=30d", "--yes")
	if got := query1(t, conn, `select count(*) from quarantine`); got != 2 {
		t.Errorf("%d rows are left, want 2", got)
	}
	if status, _, errOut := runCommand(t, nil, "quarantine", "lst"); status != 2 ||
		!strings.Contains(errOut, `did you mean "list"?`) {
		t.Errorf("status %d, %s", status, errOut)
	}
	if status, _, errOut := runCommand(t, nil, "quarantine", "list", "--data-dir", t.TempDir()); status != 1 ||
		!strings.Contains(errOut, "no pipeline runs on") {
		t.Errorf("status %d, %s", status, errOut)
	}
}
