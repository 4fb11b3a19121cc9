package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestMain has the test binary be another one, which uses a database until it is killed.
func TestMain(m *testing.M) {
	if os.Getenv("PGTEST_CHILD") != "" {
		server, err := shared()
		if err != nil {
			panic(err)
		}
		fmt.Println(server.url)
		select {}
	}
	os.Exit(m.Run())
}

func TestNothingIsLeftOfAKilledTest(t *testing.T) {
	t.Parallel()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "PGTEST_CHILD=1", "PIPELINE_TEST_DATABASE_URL=")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the other test binary has no server: %v", other.Wait())
	}
	cfg, err := pgx.ParseConfig(lines.Text())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(cfg.Host) // the socket lies in the cluster, that in the temporary folder
	if _, err := os.Stat(filepath.Join(dir, "postgres", "PG_VERSION")); err != nil {
		t.Fatal(err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	other.Wait() // "killed", as it should be
	Eventually(t, "the folder of a test that was killed is gone", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func TestDatabasesArePrivateAndMigrated(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	const insertSQL = `
insert into events (event_id, tenant_id, event_name, occurred_at, received_at)
select gen_random_uuid(), 1, 'x', now() + i * interval '1 day', now() from generate_series(-2, 2) as i`
	for range 2 {
		pool := New(t)
		if _, err := pool.Exec(ctx, insertSQL); err != nil {
			t.Fatalf("insert into the partitions around today: %v", err)
		}
		var n int
		if err := pool.QueryRow(ctx, `select count(*) from events`).Scan(&n); err != nil || n != 5 {
			t.Fatalf("events in a database of its own = %d, %v; want 5", n, err)
		}
	}
}

func TestDatabaseIsDroppedAtTheEnd(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("user", func(t *testing.T) {
		url = URL(t)
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		conn.Close(t.Context())
		t.Fatalf("%s is still there after its test", url)
	}
}

func BenchmarkNew(b *testing.B) {
	New(b)
	for b.Loop() {
		New(b)
	}
}
