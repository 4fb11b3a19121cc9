package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline/schema"
)

// database is where everything is kept: the configured one, or a private PostgreSQL that belongs to the process.
type database struct {
	url   string
	local *localpg.Server // nil with database-url
	pools []*pgxpool.Pool
}

// openDatabase starts the private PostgreSQL where no database-url is given, waits until the database answers, and
// brings its schema up to date.
func openDatabase(ctx context.Context, cfg *config, log *slog.Logger) (_ *database, err error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.startTimeout)
	defer cancel()
	db := &database{url: cfg.databaseURL}
	if db.url == "" {
		own := localpg.DefaultConfig()
		own.DataDir, own.Logger = cfg.dataDir, log
		if db.local, err = localpg.Start(ctx, own); err != nil {
			return nil, err
		}
		db.url = db.local.URL()
	}
	defer func() {
		if err != nil {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.drainTimeout)
			defer cancel()
			err = errors.Join(err, db.close(stop))
		}
	}()
	applied, err := migrate(ctx, db.url, log)
	if err != nil {
		return nil, err
	}
	if applied > 0 {
		log.Info("schema is up to date", "migrations_applied", applied)
	}
	return db, nil
}

// pool makes a pool; it connects when it is used.
func (db *database) pool(name string, conns int, reg prometheus.Registerer) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(db.url)
	if err := cli.AddressError(db.url, err); err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(conns)
	// A connection that a firewall forgot is replaced while nobody waits for it.
	cfg.MaxConnIdleTime = 5 * time.Minute
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "pipeline " + name
	}
	pgsession.ConfigurePool(cfg)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	db.pools = append(db.pools, pool)
	for _, state := range []string{"used", "idle", "max"} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "pipeline_database_connections",
			Help:        "Connections to PostgreSQL, by pool and state; max is the bound.",
			ConstLabels: prometheus.Labels{"pool": name, "state": state},
		}, func() float64 {
			stat := pool.Stat()
			switch state {
			case "used":
				return float64(stat.AcquiredConns())
			case "idle":
				return float64(stat.IdleConns())
			}
			return float64(stat.MaxConns())
		}))
	}
	return pool, nil
}

// close returns the connections back and stops the private PostgreSQL, within ctx: what does not come back is left to
// the end of the process.
func (db *database) close(ctx context.Context) error {
	closed := make(chan struct{})
	go func() {
		for _, p := range db.pools {
			p.Close()
		}
		close(closed)
	}()
	var err error
	select {
	case <-closed:
	case <-ctx.Done():
		err = errors.New("database: connections were still in use at the end of drain-timeout")
	}
	if db.local != nil {
		err = errors.Join(err, db.local.Stop(ctx))
	}
	return err
}

// migrate connects, for as long as ctx allows, and applies what is missing.
func migrate(ctx context.Context, url string, log *slog.Logger) (applied int, err error) {
	cfg, err := pgx.ParseConfig(url)
	if err := cli.AddressError(url, err); err != nil {
		return 0, err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	pgsession.Configure(cfg)
	pause := 250 * time.Millisecond
	for {
		applied, err := migrateOnce(ctx, cfg, log)
		if err == nil || !away(err) {
			return applied, explainAnswer(err)
		}
		if !wait.For(ctx, pause) {
			return 0, fmt.Errorf("the database did not answer within database.start-timeout: %w", err)
		}
		log.Warn("database does not answer, trying again", "host", cfg.Host, "port", cfg.Port, "database", cfg.Database,
			"next_try_in", pause.String(), "error", err)
		pause = min(2*pause, 5*time.Second)
	}
}

// away reports whether the database may answer later: it could not be reached, was lost on the way, or says that it
// starts, stops or has no room. Any other answer is one that waiting does not change.
func away(err error) bool {
	var answer *pgconn.PgError
	var network net.Error
	var connect *pgconn.ConnectError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &answer):
		return later(answer)
	case errors.As(err, &certificate):
		return false
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return false
}

// later reports whether an answer of the server, or of a pooler before it, may change by itself.
func later(answer *pgconn.PgError) bool {
	switch answer.Code[:min(2, len(answer.Code))] {
	case "53": // no room: too many connections, a full disk
		return true
	case "57": // starting up, shutting down
		return strings.HasPrefix(answer.Code, "57P0")
	case "08":
		return !refusedParameter(answer)
	}
	return false
}

// refusedParameter reports whether a pooler refuses a parameter of the connection. PgBouncer has one code for this and
// for a server that is away, so the text has to tell them apart.
func refusedParameter(answer *pgconn.PgError) bool {
	return answer.Code == "08P01" && strings.HasPrefix(answer.Message, "unsupported startup parameter")
}

// explainAnswer adds what to do about an answer to the connection itself.
func explainAnswer(err error) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return err
	}
	switch {
	case strings.HasPrefix(answer.Code, "28"):
		return fmt.Errorf("the database refuses the login: check user and password in database-url, and pg_hba.conf: %w", err)
	case answer.Code == "3D000":
		return fmt.Errorf("there is no such database: create it, or correct its name in database-url: %w", err)
	case refusedParameter(answer):
		return fmt.Errorf("a pooler refuses a parameter of database-url: take it out, or name it in the pooler's "+
			"ignore_startup_parameters and set it for the role: %w", err)
	}
	return err
}

var errTooOld = errors.New("database: PostgreSQL 14 or newer is needed")

func migrateOnce(ctx context.Context, cfg *pgx.ConnConfig, log *slog.Logger) (int, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const versionSQL = `select current_setting('server_version_num')`
	var version string
	if err := conn.QueryRow(ctx, versionSQL).Scan(&version); err != nil {
		return 0, err
	}
	if number, err := strconv.Atoi(version); err == nil && number < 140000 {
		return 0, fmt.Errorf("%w; this is %d", errTooOld, number/10000)
	}
	return schema.Migrate(ctx, conn, log)
}
