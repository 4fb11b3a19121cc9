package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
)

// awaitReady waits until the node is ready (""), or not ready for a reason that holds the text.
func awaitReady(t *testing.T, node *child.Process, reason string) {
	t.Helper()
	var status int
	var body []byte
	what := fmt.Sprintf("readyz says %q", reason)
	pgtest.Eventually(t, what, func() bool {
		res, err := http.Get(node.Admin + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		status = res.StatusCode
		body, err = io.ReadAll(res.Body)
		if reason == "" {
			return err == nil && status == 200
		}
		return err == nil && status == 503 && strings.Contains(string(body), reason)
	})
}

// While the database is read-only the node says so and is not ready. As soon as it is not, events are stored and
// messages delivered again, by the same process, whatever sessions its pools hold.
func TestDatabaseThatWasReadOnlyIsUsedAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	arrived := make(chan struct{}, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
	}))
	defer receiver.Close()
	args := append(writeRules(t, receiver.URL, "[100ms]"), "--copyin.deadline", "500ms")
	node := startNode(t, url, args...)
	awaitReady(t, node, "")
	conn := connect(t, url) // writes, whatever the database says
	if _, err := conn.Exec(t.Context(), `set default_transaction_read_only = off`); err != nil {
		t.Fatal(err)
	}
	name := pgx.Identifier{conn.Config().Database}.Sanitize()
	for _, sql := range []string{
		`alter database ` + name + ` set default_transaction_read_only = on`,
		`select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid()`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	awaitReady(t, node, "read-only")
	for i := range 5 {
		if r := postEvents(client(t), node.Events(), testEvent(fmt.Sprint("no", i), time.Now())); r.status != 503 {
			t.Errorf("status %d, %v from a read-only database, want 503", r.status, r.err)
		}
	}
	if _, err := conn.Exec(t.Context(), `alter database `+name+` reset default_transaction_read_only`); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, node, "")
	for i := range 5 {
		r := postEvents(client(t), node.Events(), testEvent(fmt.Sprint("yes", i), time.Now()))
		if r.status != 200 || r.Stored != 1 {
			t.Errorf("%+v after the database was writable again, want 200", r)
		}
	}
	for range 5 {
		select {
		case <-arrived:
		case <-time.After(time.Minute):
			t.Fatal("the messages of the events are not delivered")
		}
	}
}

// Each role alone is not ready while it can't do its work.
func TestEachRoleIsNotReadyOnAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	var nodes []*child.Process
	for _, role := range allRoles {
		nodes = append(nodes, startNode(t, url, "--roles", role))
	}
	conn := connect(t, url)
	name := pgx.Identifier{conn.Config().Database}.Sanitize()
	for _, node := range nodes {
		awaitReady(t, node, "")
	}
	for _, sql := range []string{
		`alter database ` + name + ` set default_transaction_read_only = on`,
		`select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid()`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for i, node := range nodes {
		if allRoles[i] == "console" {
			continue // it reads
		}
		awaitReady(t, node, "25006")
	}
	for _, sql := range []string{
		`set default_transaction_read_only = off`, `alter database ` + name + ` reset default_transaction_read_only`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range nodes {
		awaitReady(t, node, "")
	}
}

// A table that is missing is a fault and not an outage: 500 at once, the reason at /readyz, and all well when it is
// there again.
func TestFaultOfTheDatabaseIsAnsweredAsSuch(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	node := startNode(t, url, "--roles", "ingest")
	awaitReady(t, node, "")
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `alter table events rename to elsewhere`); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if r := postEvents(client(t), node.Events(), testEvent("a", begin)); r.status != 500 {
		t.Errorf("status %d, %v, want 500", r.status, r.err)
	}
	awaitReady(t, node, "42P01")
	logged(t, node, "42P01")
	if _, err := conn.Exec(t.Context(), `alter table elsewhere rename to events`); err != nil {
		t.Fatal(err)
	}
	if r := postEvents(client(t), node.Events(), testEvent("a", begin)); r.status != 200 {
		t.Errorf("status %d, %v after the repair, want 200", r.status, r.err)
	}
	awaitReady(t, node, "")
}

// A database in another encoding cannot hold every text: the start says so, at once.
func TestDatabaseInAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	name := conn.Config().Database + "_ascii"
	const createSQL = ` encoding 'SQL_ASCII' template template0 lc_collate 'C' lc_ctype 'C'`
	if _, err := conn.Exec(t.Context(), `create database `+name+createSQL); err != nil {
		t.Fatal(err)
	}
	defer conn.Exec(t.Context(), `drop database `+name)
	cfg := conn.Config().Copy()
	cfg.Database = name
	_, _, err := migrateOnce(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "SQL_ASCII") || pgsession.Away(err) {
		t.Errorf("migrate = %v; want SQL_ASCII refused, and not tried again", err)
	}
}

// The encoding that the role or the database sets is not that of the program, nor of its commands.
func TestCommandsReadEveryText(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	for _, sql := range []string{
		`insert into outbox (tenant_id, type, subject_key, dedupe_key, destination, payload)
			values (1, 'greeting', 'žluťoučký', 'k', 'crm', '{}')`,
		`alter database ` + pgx.Identifier{conn.Config().Database}.Sanitize() + ` set client_encoding = 'LATIN1'`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	status, out, errOut := runCommand(t, nil, "outbox", "list", "--database-url", url)
	if status != 0 || !strings.Contains(out, "žluťoučký") {
		t.Errorf("outbox list: status %d, %s, %s; want the message's subject", status, out, errOut)
	}
}

// What a provider or an administrator may set for the role or the database reaches nothing that a node does, in any way
// in which it may talk to PostgreSQL.
func TestNodeDependsOnNoSettingOfRoleOrDatabase(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "exec", "simple_protocol"} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			conn := connect(t, url)
			name := pgx.Identifier{conn.Config().Database}.Sanitize()
			for _, setting := range []string{
				`synchronous_commit = off`, `default_transaction_isolation = serializable`,
				`default_transaction_deferrable = on`, `statement_timeout = '20s'`, `lock_timeout = '20s'`,
				`idle_in_transaction_session_timeout = '20s'`, `timezone = 'Asia/Kathmandu'`, `datestyle = 'SQL, DMY'`,
				`intervalstyle = sql_standard`, `client_encoding = LATIN1`, `bytea_output = escape`,
				`extra_float_digits = 0`, `quote_all_identifiers = on`,
				`plan_cache_mode = force_generic_plan`, `transform_null_equals = on`, `row_security = off`,
				`lc_numeric = 'C'`, `xmloption = document`, `check_function_bodies = off`,
			} {
				if _, err := conn.Exec(t.Context(), `alter database `+name+` set `+setting); err != nil {
					t.Fatalf("%s: %v", setting, err)
				}
			}
			address := url
			if mode != "" {
				address += "&default_query_exec_mode=" + mode
			}
			checkNode(t, conn, address)
		})
	}
}

// checkNode runs a node on the database at address, which conn reaches by another way, and has it do everything once.
func checkNode(t *testing.T, conn *pgx.Conn, address string) {
	t.Helper()
	arrived := make(chan struct{}, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case arrived <- struct{}{}:
		default:
		}
	}))
	defer receiver.Close()
	node := startNode(t, address, writeRules(t, receiver.URL, "[100ms]")...)
	awaitReady(t, node, "")
	var events []string
	for i := range 20 {
		events = append(events, testEvent(fmt.Sprint(i), time.Now()))
	}
	for _, want := range []answer{{Stored: 20}, {Duplicate: 20}} {
		if r := postEvents(client(t), node.Events(), events...); r.status != 200 || r.answer != want {
			t.Errorf("%d %+v, %v; want %+v", r.status, r.answer, r.err, want)
		}
	}
	for range 20 {
		select {
		case <-arrived:
		case <-time.After(time.Minute):
			t.Fatal("the messages of the events are not delivered")
		}
	}
	pgtest.Eventually(t, "all are recorded as sent", func() bool {
		return query1(t, conn, `select count(*) from outbox where status = 'sent'`) == 20
	})
	pgtest.Eventually(t, "housekeeping has passed", func() bool {
		return metricsOf(t, node).Sum("sluice_retain_last_pass_timestamp_seconds") > 0
	})
	log, err := os.ReadFile(node.Log())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "SQLSTATE") {
			t.Errorf("in the log: %s", line)
		}
	}
	for _, c := range [][]string{
		{"outbox", "list"}, {"outbox", "retry", "--status", "sent"}, {"quarantine", "list"}, {"rules", "list"},
		{"explain", "message", "7", "--rules", "../../rules/shop.yaml"},
		{"rules", "check", "../../rules/shop.yaml"},
		{"rules", "backtest", "../../rules/shop.yaml", "--from", "1d"},
	} {
		if status, out, errOut := runCommand(t, nil, append(c, "--database-url", address)...); status != 0 {
			t.Errorf("%v: status %d, %s%s", c, status, out, errOut)
		}
	}
}

// A bound that is too short for claims and sweeps is told at the start, before anything fails by it.
func TestShortTimeoutOfTheRoleIsLogged(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	name := pgx.Identifier{conn.Config().Database}.Sanitize()
	if _, err := conn.Exec(t.Context(), `alter database `+name+` set statement_timeout = '5s'`); err != nil {
		t.Fatal(err)
	}
	logged(t, startNode(t, url, "--roles", "deliver"), "statement_timeout is 5000ms")
}
