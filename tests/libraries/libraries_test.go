// Package libraries uses outbox and inbox the way a stranger does: from a module outside of this tree.
package libraries

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"

	// The test reads both by the go command; imported, they make go test run it again when they change.
	_ "sluice.example/sluice/inbox"
	_ "sluice.example/sluice/outbox"
)

// shop promises a message in its own transaction, and has a receiver for it.
const shop = `package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/outbox"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if _, err := inbox.NewStandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		receipts, err := outbox.Enqueue(ctx, tx, outbox.Message{
			EventType: "order.placed", Payload: json.RawMessage("{}"), Destination: "billing",
		})
		if err == nil {
			fmt.Println(receipts[0].Deliveries[0].IdempotencyKey)
		}
		return err
	})
}
`

// The commands that the manuals name are enough to build an application and to enqueue, and what comes along with the
// libraries is pgx.
func TestModuleOutsideTheTree(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	m := newModule(t)
	for _, name := range []string{"outbox", "inbox"} {
		edit, tidy, _ := strings.Cut(manualCommands(t, filepath.Join(root, "docs", name+".md")), "\n")
		if tidy != "go mod tidy" {
			t.Errorf("the second command of docs/%s.md is %q, want go mod tidy", name, tidy)
		}
		m.run(strings.ReplaceAll(edit, "../sluice/", root+"/"))
	}
	m.run("go mod tidy")
	m.enqueues()

	for _, line := range strings.Split(m.run("go list -m all"), "\n") {
		module := strings.Fields(line)[0]
		for _, unwanted := range []string{"nats", "cel", "sobek", "fasthttp", "prometheus", "cloudevents", "river"} {
			if strings.Contains(module, unwanted) {
				t.Errorf("the module graph holds %s", module)
			}
		}
		if module == "sluice.example/sluice" {
			t.Errorf("the module graph holds the whole pipeline: %s", line)
		}
	}
	checkNeeds(t, m.run("go mod graph"))
}

// The other way that the manuals name leaves go.mod alone.
func TestWorkspaceOutsideTheTree(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"outbox", "inbox"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		if want := "`go work init . ../sluice/" + name + "`"; !strings.Contains(string(text), want) {
			t.Errorf("docs/%s.md does not name %s", name, want)
		}
	}
	m := newModule(t)
	m.run("go work init . " + root + "/outbox " + root + "/inbox")
	m.enqueues()
}

// checkNeeds: what the libraries require is pgx and what pgx requires.
func checkNeeds(t *testing.T, graph string) {
	t.Helper()
	const pgx = "github.com/jackc/pgx/v5"
	requires := map[string][]string{}
	for line := range strings.Lines(graph) {
		from, to, _ := strings.Cut(strings.TrimSpace(line), " ")
		from, _, _ = strings.Cut(from, "@")
		to, _, _ = strings.Cut(to, "@")
		requires[from] = append(requires[from], to)
	}
	known := map[string]bool{pgx: true, "go": true}
	for _, module := range requires[pgx] {
		known[module] = true
	}
	if len(known) < 5 {
		t.Fatalf("pgx requires %v; is this its line of the graph?\n%s", requires[pgx], graph)
	}
	for _, name := range []string{"outbox", "inbox"} {
		needs := requires["sluice.example/sluice/"+name]
		if len(needs) == 0 {
			t.Errorf("%s requires nothing", name)
		}
		for _, module := range needs {
			if !known[module] {
				t.Errorf("%s requires %s, and pgx does not", name, module)
			}
		}
	}
}

// manualCommands are the lines of the block of shell in a page.
func manualCommands(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```sh\n")
	block, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		t.Fatalf("%s has no block of shell", page)
	}
	return block
}

// module is a Go module in a temporary folder.
type module struct {
	t   *testing.T
	dir string
	env []string
}

func newModule(t *testing.T) module {
	t.Helper()
	m := module{t: t, dir: t.TempDir(), env: append(os.Environ(), "GOFLAGS=", "GOWORK=")}
	m.run("go mod init shop.example/shop")
	if err := os.WriteFile(filepath.Join(m.dir, "main.go"), []byte(shop), 0o644); err != nil {
		t.Fatal(err)
	}
	return m
}

// run runs a command of words without spaces and returns what it prints.
func (m module) run(command string) string {
	m.t.Helper()
	words := strings.Fields(command)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = m.dir
	cmd.Env = m.env
	out, err := cmd.Output()
	if err != nil {
		var text []byte
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			text = exit.Stderr
		}
		m.t.Fatalf("%s: %v\n%s%s", command, err, out, text)
	}
	return strings.TrimSpace(string(out))
}

// enqueues builds the application, runs it once, and finds its message.
func (m module) enqueues() {
	m.t.Helper()
	pool := pgtest.New(m.t)
	if _, err := pool.Exec(m.t.Context(), `insert into outbox_destinations values ('billing')`); err != nil {
		m.t.Fatal(err)
	}
	m.run("go build -o shop .")
	m.env = append(m.env, "DATABASE_URL="+pool.Config().ConnString())
	key := m.run("./shop")
	var got int
	const storedSQL = `select count(*) from outbox where idempotency_key::text = $1 and destination = 'billing'`
	if err := pool.QueryRow(m.t.Context(), storedSQL, key).Scan(&got); err != nil || got != 1 {
		m.t.Fatalf("messages with the key %q that the application got = %d, %v; want 1", key, got, err)
	}
}
