package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/operate/books"
)

// asProgram in the environment makes the test binary be the program, so that tests start real processes of the code
// under test, with the race detector where the tests have it.
const asProgram = "SLUICE_TEST_BINARY_IS_THE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Setenv(asProgram, "1")
	os.Exit(m.Run())
}

// startNode runs "pipeline run" on free ports. The node is killed at the end of the test if it still runs.
func startNode(t *testing.T, url string, args ...string) *child.Process {
	t.Helper()
	all := []string{"run", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
		"--console.listen", "127.0.0.1:0", "--log.format", "json"}
	if url != "" {
		all = append(all, "--database-url", url)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	return watch(t)(child.Start(ctx, command(t, append(all, args...))))
}

// launch runs a command that need not get ready.
func launch(t *testing.T, args ...string) *child.Process {
	t.Helper()
	return watch(t)(child.Launch(command(t, args)))
}

func command(t *testing.T, args []string) child.Command {
	return child.Command{Args: args, Env: child.Environ(), Log: filepath.Join(t.TempDir(), "log")}
}

// watch kills a process at the end of the test, and shows its log where the test failed.
func watch(t *testing.T) func(*child.Process, error) *child.Process {
	return func(c *child.Process, err error) *child.Process {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			kill(t, c)
			if t.Failed() {
				t.Logf("the end of its log:\n%s", c.Tail(30))
			}
		})
		return c
	}
}

func kill(t *testing.T, c *child.Process) {
	t.Helper()
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
}

// exit waits for the process and gives its exit status; -1 is a signal.
func exit(t *testing.T, c *child.Process, within time.Duration) int {
	t.Helper()
	select {
	case <-c.Ended():
		err := c.Wait()
		var status *exec.ExitError
		if errors.As(err, &status) {
			return status.ExitCode()
		}
		if err != nil {
			t.Fatal(err)
		}
		return 0
	case <-time.After(within):
		t.Fatalf("the process did not end within %s", within)
		return 0
	}
}

func signalNode(t *testing.T, c *child.Process, s syscall.Signal) {
	t.Helper()
	if err := c.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// signalUntilEnded sends a signal again and again: those that come together with the first are one with it.
func signalUntilEnded(t *testing.T, c *child.Process, s syscall.Signal) {
	t.Helper()
	pgtest.Eventually(t, "the process has ended", func() bool {
		c.Signal(s)
		select {
		case <-c.Ended():
			return true
		default:
			return false
		}
	})
}

// logged waits for a text in the log.
func logged(t *testing.T, c *child.Process, text string) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("%q in the log", text), func() bool {
		log, err := os.ReadFile(c.Log())
		return err == nil && strings.Contains(string(log), text)
	})
}

// answer is that of POST /v1/events.
type answer struct{ Stored, Duplicate, Rejected int64 }

// reply is the answer to a POST of events, or err.
type reply struct {
	status     int
	retryAfter string
	answer
	err error
}

func postEvents(client *http.Client, url string, events ...string) (r reply) {
	res, err := client.Post(url, "application/x-ndjson", strings.NewReader(strings.Join(events, "\n")))
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{err: err}
	}
	r.status, r.retryAfter = res.StatusCode, res.Header.Get("Retry-After")
	r.err = json.Unmarshal(body, &r.answer)
	return r
}

// client has connections of its own, as many as asked for at once.
func client(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// testEvent is a signup of a user of its own; its id and time are fixed, so repeats are recognised.
func testEvent(id string, at time.Time) string {
	return fmt.Sprintf(
		`{"event_id":%q,"event_name":"signup_completed","occurred_at":%q,"user_id":%q,"properties":{"plan":"free"}}`,
		id, at.UTC().Format(time.RFC3339Nano), "user-"+id)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// stored counts the rows of each client id.
func stored(t *testing.T, conn *pgx.Conn) map[string]int {
	t.Helper()
	rows, err := conn.Query(t.Context(), `select client_id, count(*) from events group by client_id`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	var id string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error { found[id] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return found
}

// checkOnce fails unless every acknowledged id is stored exactly once and nothing is stored twice.
func checkOnce(t *testing.T, acknowledged map[string]bool, found map[string]int) {
	t.Helper()
	lost, doubled := 0, 0
	for id := range acknowledged {
		if found[id] == 0 {
			lost++
		}
	}
	for _, n := range found {
		if n > 1 {
			doubled++
		}
	}
	if lost > 0 || doubled > 0 {
		t.Errorf("of %d acknowledged events %d are lost, and %d are stored more than once", len(acknowledged), lost, doubled)
	}
}

func query1(t *testing.T, conn *pgx.Conn, sql string) (n int64) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%v in %s", err, sql)
	}
	return n
}

func metricsOf(t *testing.T, c *child.Process) child.Metrics {
	t.Helper()
	m, err := c.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// booksOf are the books of the only tenant of a node.
func booksOf(t *testing.T, c *child.Process) books.Tenant {
	t.Helper()
	a, err := books.Fetch(t.Context(), c.Admin, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Tenants) != 1 {
		t.Fatalf("books of %d tenants, want 1: %+v", len(a.Tenants), a)
	}
	return a.Tenants[0]
}

// writeRules returns the flags for the shop's rules with a destination at url.
func writeRules(t *testing.T, url string, retry string) []string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "destinations.yaml")
	var b bytes.Buffer
	b.WriteString("destinations:\n")
	for _, name := range []string{"welcome", "sales"} {
		fmt.Fprintf(&b, "  - {name: %s, url: %q, allow_private: true, secret_file: %q, timeout: 2s, prefetch: 1, retry: "+
			"%s, attempts: 50}\n",
			name, url, filepath.Join(dir, "secret"), retry)
	}
	for name, text := range map[string]string{file: b.String(), filepath.Join(dir, "secret"): testSecret} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--rules", "../../rules/shop.yaml", "--destinations", file, "--claim.lease", "5s"}
}

func isSeconds(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1
}

// publicDir is a folder that PostgreSQL can enter when the tests run as root and it runs as another user.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
