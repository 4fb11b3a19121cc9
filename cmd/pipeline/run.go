package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/httpserve"
	"sluice.example/sluice/internal/memory"
	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/sdnotify"
	"sluice.example/sluice/internal/stages"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/operate/books"
	"sluice.example/sluice/operate/nodes"
	"sluice.example/sluice/operate/tune"
	"sluice.example/sluice/outbox"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/ingest"
)

const runAbout = `Takes events at POST /v1/events, stores them, decides by the rules, and delivers. Without a
database-url it makes a private PostgreSQL under data-dir. Several processes may share one database, each with any of
the roles.

SIGTERM and SIGINT drain, from the socket inwards, for at most drain-timeout; exit status 0 means that all was
done in time. Behind a load balancer set drain-delay: requests are still taken that long, while /readyz answers 503. A
second signal stops at once, with 128 + its number; nothing that was acknowledged is lost by that either.

A service manager that sets NOTIFY_SOCKET, as systemd does for Type=notify, is told when everything runs, when the
process stops, and how long a start or a stop may take by these settings.

--ready-file names a file for whoever starts the process: it is written once everything runs, as one JSON
object with "url" (of the events API), "admin", "console" (a link for one login), "database_url" (without its
password) and "pid", and removed when the process ends.`

func runPipeline(ctx context.Context, args []string, env cli.Env) error {
	cfg := defaultConfig()
	settings, err := readConfig(cfg, "run", runAbout, "pipeline run --rules rules/shop.yaml --destinations "+
		"destinations.yaml", args, env)
	if err != nil {
		return err
	}
	log := newLogger(env, cfg)
	logSettings(log, settings)
	if limit, ok := memory.Container(); ok {
		if err := memory.Fits(cfg.memory(), limit); err != nil {
			return err
		}
		memory.LimitToContainer()
	}
	warnOfEnvironment(log, cfg, env.Environ)
	return run(ctx, cfg, log)
}

// run is the process: the admin address first, so that the start can be watched; then the database, the stages, and the
// stop in the opposite direction.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	// SIGHUP asks the watcher of rules to look. A process without rules, or one that starts or drains, ignores it.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if err := cli.RemoveReady(cfg.readyFile); err != nil {
		return err
	}
	n := &node{cfg: cfg, log: log, reg: newRegistry(), manager: sdnotify.Take()}
	n.notify(sdnotify.Within(cfg.startTimeout + grace))
	stopAdmin, err := n.serveAdmin(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopAdmin()) }()

	if err := n.checkDoors(); err != nil {
		return err
	}

	starting, started := context.WithTimeout(ctx, cfg.startTimeout)
	defer started()
	db, err := openDatabase(starting, cfg, log)
	if err != nil {
		return startError(ctx, err)
	}
	left := cfg.drainTimeout
	patience := time.Second // a failed start has nothing to wait for
	defer func() {
		// At least a moment, so that a private PostgreSQL gets its signal even where draining took all the time.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(left, time.Second))
		defer cancel()
		err = errors.Join(err, db.close(limit, patience))
		if err == nil {
			log.Info("stopped")
		}
	}()
	n.told.Database = cli.StripPassword(db.url)
	all, err := n.prepare(starting, db)
	if err != nil {
		return startError(ctx, err)
	}
	// Last, since whoever reads the file relies on what it says.
	if err := n.told.Write(cfg.readyFile); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cli.RemoveReady(cfg.readyFile)) }()
	n.notify("READY=1", "STATUS="+n.status())
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	notice := context.AfterFunc(ctx, func() {
		n.notify("STOPPING=1", sdnotify.Within(cfg.drainDelay+cfg.drainTimeout+grace), "STATUS=draining")
		n.leave(work)
		stop()
	})
	defer notice()
	left, err = stages.Run(work, cfg.drainTimeout, log, all)
	patience = max(left, time.Second)
	return err
}

// grace is what a start or a stop takes besides its own limit, at most: a private PostgreSQL that ends, a slow disk.
const grace = 10 * time.Second

// notify tells the service manager. It decides by itself what to do where it is not told.
func (n *node) notify(lines ...string) {
	if err := n.manager.Tell(lines...); err != nil {
		n.log.Warn("not told", "error", err)
	}
}

// status is the line that systemctl status shows.
func (n *node) status() string {
	if n.told.URL == "" {
		return "roles " + strings.Join(n.cfg.roles, ", ")
	}
	return "taking events at " + n.told.URL + "/v1/events"
}

func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("stopped while starting")
	}
	return err
}

// node is what a process shows of itself, from its first moment on.
type node struct {
	cfg   *config
	log   *slog.Logger
	reg   *prometheus.Registry
	ready readiness
	books books.Handler
	self  *nodes.Self
	// manager is told of the start and the stop.
	manager sdnotify.Manager
	// told is what the ready file will hold.
	told cli.Ready
	// server is nil where no events are taken, and before the stages are made.
	server *ingest.Server
}

// leave tells load balancers and clients to go elsewhere and gives them the time to do so, while requests are still
// taken. It returns early where the stages stop by themselves.
func (n *node) leave(ctx context.Context) {
	n.ready.draining.Store(true)
	if n.server == nil || n.cfg.drainDelay == 0 {
		return
	}
	n.server.Leave()
	n.log.Info("leaving, requests are still taken", "drain_delay", n.cfg.drainDelay)
	wait.For(ctx, n.cfg.drainDelay)
}

// serveAdmin serves operators until the returned func is called.
func (n *node) serveAdmin(ctx context.Context) (stop func() error, err error) {
	l, err := net.Listen("tcp", n.cfg.adminListen)
	if err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	h := httpserve.Guard(adminHandler(n.reg, &n.ready, &n.books, n.log), n.cfg.adminListen, n.cfg.adminHosts,
		"/healthz", "/readyz")
	go func() { done <- httpserve.Serve(ctx, l, h, time.Second) }()
	n.told.Admin = "http://" + l.Addr().String()
	n.told.Pid = os.Getpid()
	n.log.Info("admin address", "url", n.told.Admin, "paths", "/healthz /readyz /metrics /v1/books /debug/pprof/")
	return func() error {
		cancel()
		return <-done
	}, nil
}

// prepare makes the stages, on a database that is up to date, and opens the door and the books. Nothing runs yet, and
// the node is ready once it does.
func (n *node) prepare(ctx context.Context, db *database) ([]stages.Stage, error) {
	p, err := db.openPools(n.cfg, n.reg)
	if err != nil {
		return nil, err
	}
	made, err := build(n.cfg, p, n.reg, n.log)
	if err != nil {
		return nil, err
	}
	n.self = nodes.New(n.identity(made.engine != nil), p.query, n.reg, n.log)
	if made.engine != nil {
		n.self.ReportRules(made.engine.Fingerprint)
	}
	err = pgsession.UntilAnswered(ctx, n.log, pgsession.Try, func(ctx context.Context) error {
		return n.introduce(ctx, p, made)
	})
	if err != nil {
		return nil, err
	}
	door, err := n.openDoor(made)
	if err != nil {
		return nil, err
	}
	page, err := n.openConsole(p, made)
	if err != nil {
		return nil, errors.Join(err, closeDoor(door))
	}
	tuned := tune.NewFollower(p.query, n.self.Name, made.live(), n.self, n.log)
	if err := tuned.Look(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("settings that operators changed: %w", err), closeDoor(door))
	}
	n.server = made.server
	n.ready.started(made.checks(p)...)
	// It ends last, when nothing is written any more: the books of others go by it.
	last := stages.New("node", n.self.Run)
	return slices.Concat(made.running(door), page, []stages.Stage{stages.New("tune", tuned.Run), last}), nil
}

// introduce asks of the database, and writes into it, what has to be there before anything runs. It may be repeated.
func (n *node) introduce(ctx context.Context, p pools, made *parts) error {
	short, err := pgsession.Short(ctx, p.query)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if len(short) > 0 {
		n.log.Warn("the role or the database bounds what a claim or a sweep may take, and one that takes longer fails; "+
			"set more for the role, with alter role ... set ...", "settings", strings.Join(short, ", "))
	}
	if n.cfg.destinations != "" {
		// Applications that enqueue are told of a wrong name in their own transaction.
		if err := outbox.SyncTopics(ctx, p.query, made.destinations.Names(), made.topics); err != nil {
			return err
		}
		if err := outbox.SyncTenants(ctx, p.query, made.tenants.IDs()); err != nil {
			return err
		}
	}
	if err := n.self.Register(ctx); err != nil {
		return err
	}
	return n.books.Begin(ctx, n.reg, p.pages, made.tenants.IDs(), n.self.ID)
}

// identity is what others know this process by. Two processes on one machine differ in the port of their admin address.
func (n *node) identity(writes bool) nodes.Identity {
	address := strings.TrimPrefix(n.told.Admin, "http://")
	name := n.cfg.nodeName
	if name == "" {
		host, err := os.Hostname()
		_, port, _ := net.SplitHostPort(address)
		if err != nil {
			host = "localhost"
		}
		name = net.JoinHostPort(host, port)
	}
	return nodes.Identity{ID: pipeline.NewUUIDv4(), Name: name, Address: address, Version: version(), Roles: n.cfg.roles,
		Writes: writes}
}

// checkDoors reports an address that can't be listened at, before a start changes anything in the database.
func (n *node) checkDoors() error {
	for _, d := range []struct{ role, setting, address string }{
		{"ingest", "listen", n.cfg.listen}, {"console", "console.listen", n.cfg.console.Listen},
	} {
		if !n.cfg.hasRole(d.role) {
			continue
		}
		door, err := net.Listen("tcp", d.address)
		if err == nil {
			err = door.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d.setting, err)
		}
	}
	return nil
}

// openDoor listens for events; nil where the node takes none.
func (n *node) openDoor(made *parts) (net.Listener, error) {
	if made.server == nil {
		return nil, nil
	}
	door, err := net.Listen("tcp", n.cfg.listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	scheme := "http"
	if n.cfg.ingest.TLSCertFile != "" {
		scheme = "https"
	}
	n.told.URL = scheme + "://" + door.Addr().String()
	n.log.Info("taking events", "url", n.told.URL+"/v1/events")
	return door, nil
}
