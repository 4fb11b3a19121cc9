package copyin

import (
	"os"
	"strings"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// reviewedPgx is the version of pgx whose pgconn was read for goStraight.
const reviewedPgx = "v5.13.0"

// goStraight writes past pgconn. Whether that is safe depends on what pgconn keeps beside the connection, which no
// signature tells.
func TestStraightIsReviewedForThisPgx(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "github.com/jackc/pgx/v5" {
			continue
		}
		if f[1] != reviewedPgx {
			t.Errorf("pgx is %s, and goStraight was reviewed with %s: read its comment beside pgconn's SyncConn, Conn, "+
				"ReceiveMessage and Close of %[1]s, then set reviewedPgx", f[1], reviewedPgx)
		}
		return
	}
	t.Error("go.mod does not name github.com/jackc/pgx/v5")
}

// One connection is used past pgconn and by pgconn in turns, with what PostgreSQL sends unasked in between (notices,
// notifications, parameters), and with copies so large that pgconn reads in the background while it writes.
func TestStraightAndPgconnShareAConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	exec(t, pool, `
create function tell() returns trigger language plpgsql as $$
begin
    raise notice 'stored %', new.event_name;
    perform pg_notify('told', new.event_name);
    perform set_config('application_name', new.event_name, false);
    return new;
end $$`)
	exec(t, pool, `create trigger tell after insert on events for each row execute function tell()`)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `listen told`); err != nil {
		t.Fatal(err)
	}
	pid, want := conn.Conn().PgConn().PID(), 0
	for round := range 5 {
		for _, size := range []int{1, 100, 20_000, 1} {
			b := newBatch(events(size))
			straight := b.straight(mode{}, nil)
			if straight != (size <= 100) {
				t.Fatalf("a batch of %d events goes straight: %v", size, straight)
			}
			if straight {
				err = w.goStraight(t.Context(), t.Context(), conn.Conn(), b)
			} else {
				_, err = conn.Conn().PgConn().CopyFrom(t.Context(), b.rows(b.remaining()), copySQL)
			}
			b.release()
			if err != nil {
				t.Fatalf("round %d, %d events: %v", round, size, err)
			}
			want += size
			var rows int
			var now uint32
			err := conn.QueryRow(t.Context(), `select count(*), pg_backend_pid() from events`).Scan(&rows, &now)
			if err != nil || rows != want || now != pid {
				t.Fatalf("round %d, after %d events: %d rows by backend %d, %v; want %d by %d",
					round, size, rows, now, err, want, pid)
			}
		}
	}
}
