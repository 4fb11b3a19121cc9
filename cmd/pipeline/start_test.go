package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
)

// starts matches statements of a start that come after the migration.
var starts = map[string]func(pgtest.Message) bool{
	"bounds of the role": func(m pgtest.Message) bool { return strings.Contains(m.SQL(), "from pg_settings") },
	"destinations":       func(m pgtest.Message) bool { return strings.Contains(m.SQL(), "sluice:sync_topics") },
	"books":              func(m pgtest.Message) bool { return strings.Contains(m.SQL(), "insert into sluice_processes") },
	"end of the books":   func(m pgtest.Message) bool { return strings.Contains(m.SQL(), "max(message_id)") },
}

// TestStartIsTriedAgain: whatever a connection does between the migration and the line that says ready, the start goes
// on with another one.
func TestStartIsTriedAgain(t *testing.T) {
	t.Parallel()
	for what, match := range starts {
		for how, action := range map[string]pgtest.Action{"cut": pgtest.CutBefore, "silent": pgtest.Hang} {
			if how == "silent" && what != "destinations" && what != "books" {
				continue // each takes as long as one try
			}
			t.Run(what+" "+how, func(t *testing.T) {
				t.Parallel()
				url := pgtest.URL(t)
				proxy := pgtest.NewProxy(t, url)
				hook, done := pgtest.Once(action, match)
				proxy.OnMessage(hook)
				node := startNode(t, proxy.URL(), writeRules(t, "http://127.0.0.1:9", "[1h]")...)
				<-done
				awaitReady(t, node, "")
				logged(t, node, "trying again")
				conn := connect(t, url)
				if n := query1(t, conn, `select count(*) from sluice_processes`); n != 1 {
					t.Errorf("the process registered %d times", n)
				}
			})
		}
	}
}

// TestStartWaitsForAReadOnlyMoment: a start in the middle of a switch-over.
func TestStartWaitsForAReadOnlyMoment(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	name := pgx.Identifier{conn.Config().Database}.Sanitize()
	if _, err := conn.Exec(t.Context(), `alter database `+name+` set default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	args := append(writeRules(t, "http://127.0.0.1:9", "[1h]"), "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0")
	node := launch(t, append([]string{"run", "--database-url", url}, args...)...)
	logged(t, node, "25006")
	if _, err := conn.Exec(t.Context(), `alter database `+name+` reset default_transaction_read_only`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, conn, `select count(*) = 1 from sluice_processes`)
}

// TestStartTimeoutIsKept: locks that somebody holds and a database that is silent end the start when its time is over.
func TestStartTimeoutIsKept(t *testing.T) {
	t.Parallel()
	const timeout, leeway = 2 * time.Second, 5 * time.Second // a busy machine takes its time
	for _, c := range []struct{ what, lock, reason string }{
		{"a migration's lock", `select pg_advisory_lock(hashtextextended('sluice:schema', 0))`,
			"did not answer within database.start-timeout"},
		{"the lock of destinations", `select pg_advisory_lock(hashtextextended('sluice:sync_topics', 0))`,
			"did not answer within database.start-timeout"},
		{"silence", "", "did not answer within database.start-timeout"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			if c.lock != "" {
				if _, err := connect(t, url).Exec(t.Context(), c.lock); err != nil {
					t.Fatal(err)
				}
			}
			proxy := pgtest.NewProxy(t, url)
			proxy.SetBlackHole(c.lock == "")
			args := append(writeRules(t, "http://127.0.0.1:9", "[1h]"), "--listen", "127.0.0.1:0",
				"--admin.listen", "127.0.0.1:0",
				"--console.listen", "127.0.0.1:0", "--database.start-timeout", timeout.String())
			begin := time.Now()
			node := launch(t, append([]string{"run", "--database-url", proxy.URL()}, args...)...)
			if status := exit(t, node, time.Minute); status != 1 {
				t.Errorf("exit status %d, want 1", status)
			}
			if took := time.Since(begin); took > timeout+leeway {
				t.Errorf("the start took %s with a start-timeout of %s", took, timeout)
			}
			logged(t, node, c.reason)
		})
	}
}

// TestSIGTERMEndsAStart, also where the database has gone silent after the migration.
func TestSIGTERMEndsAStart(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	hook, silent := pgtest.Once(pgtest.Hang, starts["books"])
	proxy.OnMessage(hook)
	args := append(writeRules(t, "http://127.0.0.1:9", "[1h]"), "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0")
	node := launch(t, append([]string{"run", "--database-url", proxy.URL()}, args...)...)
	<-silent
	proxy.SetBlackHole(true)
	begin := time.Now()
	signalNode(t, node, syscall.SIGTERM)
	if status := exit(t, node, time.Minute); status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the process ended %s after SIGTERM", took)
	}
	logged(t, node, "stopped while starting")
}
