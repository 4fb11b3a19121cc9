package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/localpg"
	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/pipeline/schema"
)

// database is where everything is kept: the configured one, or a private PostgreSQL that belongs to the process.
type database struct {
	url   string
	local *localpg.Server // nil with database-url
	pools []*pgxpool.Pool
	// pooled: a pooler stands before the database. Known once it is migrated.
	pooled bool
}

// openDatabase starts the private PostgreSQL where no database-url is given, waits until the database answers, and
// brings its schema up to date. ctx ends with database.start-timeout.
func openDatabase(ctx context.Context, cfg *config, log *slog.Logger) (_ *database, err error) {
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
			err = errors.Join(err, db.close(stop, time.Second))
		}
	}()
	applied, err := db.migrate(ctx, log)
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
	if db.pooled {
		pgsession.WithoutPrepared(cfg.ConnConfig)
	}
	pgsession.ConfigurePool(cfg)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	db.pools = append(db.pools, pool)
	for _, state := range []string{"used", "idle", "max"} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "sluice_database_connections",
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

// close gives the connections back, within patience, and stops the private PostgreSQL, within ctx: what does not come
// back is left to the end of the process.
func (db *database) close(ctx context.Context, patience time.Duration) error {
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
	case <-time.After(patience):
		err = errors.New("database: connections were still in use at the end of drain-timeout")
	}
	if db.local != nil {
		err = errors.Join(err, db.local.Stop(ctx))
	}
	return err
}

// migrate connects, for as long as ctx allows, and applies what is missing.
func (db *database) migrate(ctx context.Context, log *slog.Logger) (applied int, err error) {
	cfg, err := pgx.ParseConfig(db.url)
	if err := cli.AddressError(db.url, err); err != nil {
		return 0, err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	pgsession.Configure(cfg)
	log = log.With("host", cfg.Host, "port", cfg.Port, "database", cfg.Database)
	err = pgsession.UntilAnswered(ctx, log, 0, func(ctx context.Context) (err error) {
		applied, db.pooled, err = migrateOnce(ctx, cfg, log)
		return err
	})
	if db.pooled {
		log.Info("a pooler stands before the database; no statements are prepared",
			"default_query_exec_mode", cfg.DefaultQueryExecMode.String())
	}
	return applied, err
}

var errTooOld = errors.New("database: PostgreSQL 14 or newer is needed")

func migrateOnce(ctx context.Context, cfg *pgx.ConnConfig, log *slog.Logger) (applied int, pooled bool, err error) {
	// A migration may take long, its first answers may not.
	first, cancel := context.WithTimeout(ctx, pgsession.Try)
	defer cancel()
	conn, pooled, err := pgsession.Connect(first, cfg)
	if err != nil {
		return 0, pooled, err
	}
	defer func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(limit)
	}()
	const versionSQL = `select current_setting('server_version_num')`
	var version string
	if err := conn.QueryRow(first, versionSQL).Scan(&version); err != nil {
		return 0, pooled, err
	}
	if number, err := strconv.Atoi(version); err == nil && number < 140000 {
		return 0, pooled, fmt.Errorf("%w; this is %d", errTooOld, number/10000)
	}
	applied, err = schema.Migrate(ctx, conn, log)
	return applied, pooled, err
}
