package main

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"sluice.example/sluice/internal/pgtest"
)

// answering is the URL of a server, or of a pooler, that answers every start of a session with an error.
func answering(t *testing.T, code, message string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed at the end of the test
			}
			server := pgproto3.NewBackend(conn, conn)
			if _, err := server.ReceiveStartupMessage(); err == nil {
				server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: message})
				_ = server.Flush() // the client sees the end of the connection
			}
			conn.Close()
		}
	}()
	return "postgres://app:hunter2@" + l.Addr().String() + "/events?sslmode=disable"
}

// An answer is not an outage: it is said at once, with what to do, and not asked for again until start-timeout ends.
func TestStartSaysAnswersAtOnce(t *testing.T) {
	t.Parallel()
	missing, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	noRole, noParameter := *missing, *missing
	missing.Path = "/no_such_database"
	query := noRole.Query()
	query.Set("user", "no_such_role")
	noRole.RawQuery = query.Encode()
	query = noParameter.Query()
	query.Set("no_such_parameter", "1")
	noParameter.RawQuery = query.Encode()
	for _, c := range []struct{ what, url, want string }{
		{"a missing database", missing.String(), "there is no such database: create it"},
		{"a missing role", noRole.String(), "the database refuses the login"},
		{"an unknown parameter", noParameter.String(), `unrecognized configuration parameter "no_such_parameter"`},
		{"a wrong password", answering(t, "28P01", `password authentication failed for user "app"`), "refuses the login"},
		{"a pooler's refusal", answering(t, "08P01", "unsupported startup parameter: search_path"),
			"ignore_startup_parameters"},
	} {
		// Two minutes of waiting would reach the deadline of the tests; the log would have a line for each try.
		var log strings.Builder
		_, err := (&database{url: c.url}).migrate(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want %q", c.what, err, c.want)
		}
		if log.Len() > 0 {
			t.Errorf("%s was tried again:\n%s", c.what, log.String())
		}
	}
}

// What may change by itself is waited for.
func TestStartWaitsForOutages(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for what, address := range map[string]string{
		"nobody listens":            "postgres://app@" + closed.Addr().String() + "/x?sslmode=disable",
		"starting up":               answering(t, "57P03", "the database system is starting up"),
		"too many connections":      answering(t, "53300", "sorry, too many clients already"),
		"read-only":                 answering(t, "25006", "cannot execute INSERT in a read-only transaction"),
		"a pooler without a server": answering(t, "08P01", "server login has been failing, try again later"),
	} {
		cfg := defaultConfig()
		cfg.databaseURL = address
		var log strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // enough for a second try
		_, err := openDatabase(ctx, cfg, slog.New(slog.NewTextHandler(&log, nil)))
		cancel()
		if err == nil || !strings.Contains(err.Error(), "did not answer within database.start-timeout") {
			t.Errorf("%s: %v; want it waited for", what, err)
		}
		if !strings.Contains(log.String(), "trying again") {
			t.Errorf("%s was not tried again: %q", what, log.String())
		}
	}
}
