package bench

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"sluice/internal/localpg"
	"sluice/pipeline/schema"
)

// postgres is a server with the settings that the program itself uses by default: fsync and synchronous_commit on.
type postgres struct {
	url        string
	pool       *pgxpool.Pool
	postmaster int
}

func startPostgres(b *testing.B) *postgres {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run as another user
		b.Fatal(err)
	}
	cfg := localpg.DefaultConfig()
	cfg.DataDir = filepath.Join(dir, "data")
	server, err := localpg.Start(ctx, cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(ctx); err != nil {
			b.Error(err)
		}
	})
	conn, err := pgx.Connect(ctx, server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := schema.Migrate(ctx, conn); err != nil {
		b.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `select create_events_partition(current_date + n) from generate_series(-1, 1) n`); err != nil {
		b.Fatal(err)
	}
	p := &postgres{url: server.URL()}
	if p.pool, err = pgxpool.New(ctx, p.url); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.pool.Close)
	// The parent of any backend is the postmaster.
	backend, err := procStat(int(conn.PgConn().PID()))
	if err != nil {
		b.Fatal(err)
	}
	fmt.Sscan(backend[1], &p.postmaster)
	return p
}

// truncate empties what a run fills, and ends the checkpoint that this may have started before anything is measured.
func (p *postgres) truncate(b *testing.B) {
	b.Helper()
	for _, sql := range []string{`truncate events, outbox, dedupe_keys, quarantine`, `checkpoint`} {
		if _, err := p.pool.Exec(context.Background(), sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
}

// expectEvents fails unless exactly n events are stored, n of them distinct.
func (p *postgres) expectEvents(b *testing.B, n int) {
	b.Helper()
	var rows, ids int
	err := p.pool.QueryRow(context.Background(), `select count(*), count(distinct event_id) from events`).Scan(&rows, &ids)
	if err != nil {
		b.Fatal(err)
	}
	if rows != n || ids != n {
		b.Fatalf("stored %d rows with %d ids, want %d of each", rows, ids, n)
	}
}

// program is a running pipeline, built from this checkout.
type program struct {
	url string
	cmd *exec.Cmd
}

func startPipeline(b *testing.B, pg *postgres, args ...string) *program {
	dir := b.TempDir()
	binary := filepath.Join(dir, "pipeline")
	if out, err := exec.Command("go", "build", "-o", binary, "sluice/cmd/pipeline").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	listen, admin := freeAddress(b), freeAddress(b)
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(binary, append([]string{"run", "--listen", listen, "--admin.listen", admin}, args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pg.url)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, logFile, logFile
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err == nil {
			err = cmd.Wait()
			if err == nil {
				return
			}
		}
		said, _ := os.ReadFile(logFile.Name())
		b.Errorf("the pipeline did not end well: %v\n%s", err, said)
	})
	for deadline := time.Now().Add(time.Minute); ; {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return &program{url: "http://" + listen, cmd: cmd}
			}
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(logFile.Name())
			b.Fatalf("the pipeline is not ready after a minute: %v\n%s", err, said)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func freeAddress(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// cost is what one run took.
type cost struct{ wall, postgres, program, generator time.Duration }

func measure(b *testing.B, pg *postgres, p *program, run func()) cost {
	start := time.Now()
	postgres, program, generator := clusterCPU(b, pg.postmaster), processCPU(b, p.cmd.Process.Pid), processCPU(b, os.Getpid())
	run()
	return cost{
		wall:      time.Since(start),
		postgres:  clusterCPU(b, pg.postmaster) - postgres,
		program:   processCPU(b, p.cmd.Process.Pid) - program,
		generator: processCPU(b, os.Getpid()) - generator,
	}
}
