package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/pipeline/schema"
)

// Replicated is a PostgreSQL whose COMMITs wait for a standby that streams from it (synchronous_standby_names is '*').
// Both belong to one test, and end with it.
type Replicated struct {
	// Primary and Standby are pools on the migrated database of either; Standby reads until Promote.
	Primary, Standby *pgxpool.Pool

	t        testing.TB
	primary  *localpg.Server
	conninfo string
}

// NewReplicated makes the two servers and returns once the standby streams. It takes a second or two.
func NewReplicated(t testing.TB) *Replicated {
	t.Helper()
	r := &Replicated{t: t}
	root := shortDir(t)
	main, copied := filepath.Join(root, "a"), filepath.Join(root, "b")
	r.primary, r.Primary = r.start(main)
	conn, err := r.Primary.Acquire(t.Context())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if _, err := schema.Migrate(t.Context(), conn.Conn(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	conn.Release()
	r.exec(r.Primary, partitionsSQL)
	r.copy(main, copied)
	_, r.Standby = r.start(copied)
	if err := r.Standby.QueryRow(t.Context(), `show primary_conninfo`).Scan(&r.conninfo); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	r.exec(r.Primary, `alter system set synchronous_standby_names = '*'`)
	r.exec(r.Primary, `select pg_reload_conf()`)
	Until(t, r.Primary, `select count(*) from pg_stat_replication where sync_state = 'sync'`, 1)
	return r
}

// shortDir is a folder with a path short enough for sockets, which the server's user may enter.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "sluice-pgtest-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return dir
}

func (r *Replicated) start(dir string) (*localpg.Server, *pgxpool.Pool) {
	cfg := localpg.DefaultConfig()
	cfg.DataDir, cfg.BinDir, cfg.Logger = dir, BinDir(), slog.New(slog.DiscardHandler)
	cfg.Settings = map[string]string{
		"fsync": "off", "shared_buffers": "16MB", "min_wal_size": "32MB", "wal_retrieve_retry_interval": "100ms",
		"wal_receiver_status_interval": "1s",
	}
	server, err := localpg.Start(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	r.t.Cleanup(func() { r.stop(server) })
	pool, err := pgxpool.New(context.Background(), server.URL())
	if err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	r.t.Cleanup(pool.Close)
	return server, pool
}

// stop does not wait for what waits for a standby.
func (r *Replicated) stop(server *localpg.Server) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = server.Stop(ctx) // an immediate shutdown, as wanted
}

// copy makes the standby's cluster, with the primary's owner.
func (r *Replicated) copy(from, to string) {
	cluster := filepath.Join(to, "postgres")
	cfg, err := pgx.ParseConfig(r.primary.URL())
	if err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	var bin string
	const binSQL = `select setting from pg_config where name = 'BINDIR'`
	if err := r.Primary.QueryRow(r.t.Context(), binSQL).Scan(&bin); err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	if _, err := exec.LookPath(filepath.Join(bin, "pg_basebackup")); err != nil {
		r.t.Skipf("pgtest: %s has no pg_basebackup, which makes a standby", bin)
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	backup := exec.CommandContext(r.t.Context(), filepath.Join(bin, "pg_basebackup"), "--host="+cfg.Host,
		fmt.Sprint("--port=", cfg.Port), "--username="+cfg.User, "--pgdata="+cluster, "--write-recovery-conf",
		"--wal-method=stream", "--checkpoint=fast", "--no-sync")
	if out, err := backup.CombinedOutput(); err != nil {
		r.t.Fatalf("pgtest: pg_basebackup: %v\n%s", err, out)
	}
	// The primary's socket lies in its cluster, and its lock was copied along.
	if err := os.Remove(filepath.Join(cluster, fmt.Sprintf(".s.PGSQL.%d.lock", cfg.Port))); err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	info, err := os.Stat(filepath.Join(from, "postgres"))
	if err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	err = filepath.WalkDir(cluster, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, int(owner.Uid), int(owner.Gid))
		}
		return err
	})
	if err != nil {
		r.t.Fatalf("pgtest: %v", err)
	}
}

// Detach cuts the standby off: from now on COMMITs of the primary wait.
func (r *Replicated) Detach() {
	r.t.Helper()
	r.stream("")
	Until(r.t, r.Primary, `select count(*) from pg_stat_replication`, 0)
}

// Attach lets the standby stream again.
func (r *Replicated) Attach() {
	r.t.Helper()
	r.stream(r.conninfo)
	Until(r.t, r.Primary, `select count(*) from pg_stat_replication where sync_state = 'sync'`, 1)
}

func (r *Replicated) stream(from string) {
	r.exec(r.Standby, `alter system set primary_conninfo = '`+strings.ReplaceAll(from, "'", "''")+`'`)
	r.exec(r.Standby, `select pg_reload_conf()`)
}

// Promote ends the primary as a crash would, and makes the standby one.
func (r *Replicated) Promote() {
	r.t.Helper()
	r.stop(r.primary)
	r.exec(r.Standby, `select pg_promote()`)
	Until(r.t, r.Standby, `select not pg_is_in_recovery()`)
}

func (r *Replicated) exec(db *pgxpool.Pool, sql string) {
	r.t.Helper()
	if _, err := db.Exec(context.Background(), sql); err != nil {
		r.t.Fatalf("pgtest: %s: %v", sql, err)
	}
}
