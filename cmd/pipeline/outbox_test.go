package main

import (
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

func TestOutbox(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	const insertSQL = `
with m as (
    insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload, status, attempts,
        finished_at, last_error)
    select 1, 'welcome', 'user-' || i, 'key-' || i, case when i <= 5 then 'crm' else 'mail' end, '{"n": 1}',
        case when i <= 3 or i > 5 then 'dead' else 'sent' end, 6, now(),
        case when i <= 3 then E'HTTP 500: out\x1b[2J of order' end
    from generate_series(1, 6) i
    returning message_id)
insert into outbox_attempts (message_id, attempt, started_at, latency_seconds, status, http_status, error)
select message_id, 1, now(), 0.25, 'failed', 500, 'HTTP 500' from m where message_id = (select min(message_id) from m)`
	if _, err := conn.Exec(t.Context(), insertSQL); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		status, out, errOut := runCommand(t, []string{"DATABASE_URL=" + url}, append([]string{"outbox"}, args...)...)
		if status != 0 {
			t.Errorf("outbox %q: status %d, %s", args, status, errOut)
		}
		return out
	}
	has := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}
	out := run("list", "--status", "dead", "--destination", "crm")
	has(out, `dead  welcome to crm for "user-3", 6 attempts`, `HTTP 500: out\u001b[2J of order`)
	if strings.Count(out, "to crm") != 3 || strings.Contains(out, "\x1b") {
		t.Errorf("list of dead for crm:\n%q", out)
	}
	has(run("list", "--limit", "2"), "there may be more: --before 5")
	has(run("list", "--type", "nothing"), "no such messages")
	has(run("list", "--json", "--limit", "1"), `"message_id":6`, `"payload":{"n":1}`, `"state":"dead"`)
	has(run("show", "1"), `payload: {"n": 1}`, "Idempotency-Key", "attempt 1  ", "failed after 250ms")
	has(run("show", "2"), "no attempts are on record")

	has(run("retry", "--destination", "crm"), "crm: 3 dead", "3 messages would be retried; with --yes they are")
	if got := query1(t, conn, `select count(*) from outbox where status = 'pending'`); got != 0 {
		t.Errorf("the dry run made %d messages due", got)
	}
	has(run("retry", "--destination", "crm", "--error", "HTTP 500", "--rate", "2", "--yes"),
		"2 of 3 retried, up to message 2", "3 messages retried")
	const dueAgainSQL = `
select count(*) from outbox where status = 'pending' and attempts = 0 and redrives = 1 and message_id <= 3`
	if got := query1(t, conn, dueAgainSQL); got != 3 {
		t.Errorf("%d messages are due again; want 3", got)
	}
	has(run("discard", "6", "1", "--after", "1", "--yes"), "1 messages discarded")
	if got := query1(t, conn, `select count(*) from outbox where status = 'skipped' and message_id = 6`); got != 1 {
		t.Error("message 6 is not skipped")
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{`did you mean "list"?`, []string{"lsit"}},
		{`unexpected argument "x"`, []string{"retry", "x"}},
		{"give the id of one message", []string{"show"}},
		{`did you mean "dead"?`, []string{"list", "--status", "deed"}},
		{"--rate: 0", []string{"retry", "--rate", "0"}},
	} {
		if status, _, errOut := runCommand(t, nil, append([]string{"outbox"}, c.args...)...); status != 2 ||
			!strings.Contains(errOut, c.want) {
			t.Errorf("outbox %q: status %d, %s; want 2 and %q", c.args, status, errOut, c.want)
		}
	}
	if status, _, errOut := runCommand(t, []string{"DATABASE_URL=" + url}, "outbox", "show", "99"); status != 1 ||
		!strings.Contains(errOut, "no such message") {
		t.Errorf("show of no message: status %d, %s", status, errOut)
	}
}
