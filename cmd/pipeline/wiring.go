package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/dbclock"
	"sluice.example/sluice/internal/memory"
	"sluice.example/sluice/internal/stages"
	"sluice.example/sluice/internal/tenants"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/buffer"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/copyin"
	"sluice.example/sluice/pipeline/deliver"
	"sluice.example/sluice/pipeline/evaluate"
	"sluice.example/sluice/pipeline/ingest"
	"sluice.example/sluice/pipeline/retain"
	"sluice.example/sluice/pipeline/rules"
	"sluice.example/sluice/pipeline/rules/replay"
)

// parts is every stage of a process, made but not running; nil where its role is not taken.
type parts struct {
	cfg *config
	log *slog.Logger

	tenants      tenants.Set
	who          atomic.Pointer[tenants.Set] // tenants, as reloaded
	again        chan struct{}               // a nudge that the rules are to be reloaded
	destinations deliver.Destinations
	topics       map[string][]string

	engine     *evaluate.Engine
	rulesDB    *pgxpool.Pool
	server     *ingest.Server
	buffer     *buffer.Buffer
	usage      func() buffer.Usage
	trouble    func() error
	sweeper    *evaluate.Sweeper
	queue      *claim.Queue
	dispatcher *deliver.Dispatcher
	notifier   *claim.Notifier
	keeper     *retain.Keeper
	clock      *dbclock.Watcher
}

// pools are the connections that the stages share: one set for writers, so that nothing else can take a connection
// from ingest, one for what operators look at, which may take long, one for the console, and one for everything else.
type pools struct{ write, query, pages, console *pgxpool.Pool }

func (db *database) openPools(cfg *config, reg prometheus.Registerer) (p pools, err error) {
	if p.write, err = db.pool("write", max(1, cfg.buffer.Writers), reg); err != nil {
		return p, err
	}
	if p.pages, err = db.pool("pages", 1, reg); err != nil {
		return p, err
	}
	if cfg.hasRole("console") {
		if p.console, err = db.pool("console", 2, reg); err != nil {
			return p, err
		}
	}
	p.query, err = db.pool("query", max(1, cfg.queryConns), reg)
	return p, err
}

// checkStages reports every fault of the stages' settings and of the files that they name, without a database.
func checkStages(cfg *config) error {
	db := &database{url: cfg.databaseURL}
	if db.url == "" {
		db.url = "postgres:///not-connected-to"
	}
	reg := prometheus.NewRegistry()
	p, err := db.openPools(cfg, reg)
	if err == nil {
		_, err = build(cfg, p, reg, slog.New(slog.DiscardHandler))
	}
	return errors.Join(err, db.close(context.Background(), time.Second))
}

// build makes the stages that the roles ask for and joins them. It starts nothing and touches no database, so it also
// serves to check the settings: the error joins every fault of every stage and of the files that they name.
func build(cfg *config, db pools, reg prometheus.Registerer, log *slog.Logger) (*parts, error) {
	p := &parts{
		cfg: cfg, log: log, rulesDB: db.query, clock: dbclock.New(db.query, reg, log), again: make(chan struct{}, 1),
	}
	var errs []error
	failed := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	if cfg.tenants != "" {
		p.tenants, err = tenants.Load(cfg.tenants)
		failed(err)
	}
	p.who.Store(&p.tenants)
	if cfg.destinations != "" {
		p.destinations, err = deliver.Load(cfg.destinations)
		failed(err)
		p.destinations.NameTenants(p.tenants.IDs())
	}
	if cfg.topics != "" {
		p.topics, err = p.destinations.LoadTopics(cfg.topics)
		failed(err)
	}

	if cfg.hasRole("deliver") {
		p.queue, err = claim.New(cfg.claim, db.query, claim.NewMetrics(reg, p.destinations.Names()...), log)
		failed(err)
		if err == nil {
			// What is under way gets a third: the stages before deliver may use half, and results are recorded after it.
			cfg.deliver.DrainTimeout = cfg.drainTimeout / 3
			p.dispatcher, err = deliver.New(cfg.deliver, p.destinations, recheckedQueue{p.queue, evaluate.NewRechecker(db.query,
				log)}, cfg.claim.Lease,
				deliver.NewMetrics(reg), log)
			failed(err)
		}
	}
	p.notifier = claim.NewNotifier(db.query, claim.NewNotifierMetrics(reg), log)
	if p.queue != nil {
		p.queue.OnPassed(func(skipped bool) {
			if skipped {
				p.dispatcher.Nudge()
			}
			p.notifier.Notify()
		})
	}
	nudge := func(int) {
		if p.dispatcher != nil {
			p.dispatcher.Nudge()
		}
		p.notifier.Notify()
	}

	if cfg.hasRole("retain") {
		p.keeper, err = retain.New(cfg.retain, db.query, retain.NewMetrics(reg), log, evaluate.NewPruner(cfg.evaluate))
		failed(err)
	}
	if cfg.hasRole("ingest") || cfg.hasRole("sweep") {
		p.engine, err = evaluate.New(cfg.evaluate, evaluate.NewMetrics(reg), log, nudge)
		failed(err)
		if cfg.evaluate.Rules != "" && err == nil && len(errs) == 0 {
			set, err := p.loadRules()
			failed(err)
			if err == nil {
				for _, w := range set.Warnings() {
					log.Warn("rules", "warning", w.String())
				}
				p.engine.Use(set)
			}
		}
	}
	if cfg.hasRole("sweep") {
		p.sweeper = evaluate.NewSweeper(p.engine, db.query, evaluate.NewSweepMetrics(reg))
	}
	if cfg.hasRole("ingest") {
		tenants := slices.Collect(maps.Values(p.tenants.IDs()))
		writer, err := copyin.New(cfg.copyin, db.write, decideWith(p.engine), copyin.NewMetrics(reg, tenants...), log)
		failed(err)
		p.trouble = writer.Trouble
		// One after the other, and in time: what waits for an answer gets one, and what is lost is counted.
		cfg.ingest.DrainTimeout = cfg.drainTimeout * 2 / 5
		cfg.buffer.DrainTimeout = cfg.drainTimeout * 2 / 5
		if p.buffer, err = buffer.New(cfg.buffer, writer.Write, buffer.NewMetrics(reg, tenants...)); err != nil {
			failed(err)
		} else if writer != nil {
			p.buffer.RefuseWhile(writer.Away)
			p.buffer.TellLost(func(events int) {
				log.Error("buffer: events that were answered 202 are lost: they were not written before the stop", "events", events)
			})
		}
		p.usage = func() buffer.Usage {
			return buffer.Usage{Commit: writer.Committing(), CPU: processCPU(), Cores: runtime.GOMAXPROCS(0)}
		}
		p.server, err = ingest.New(cfg.ingest, p.buffer, p.tenants, ingest.NewMetrics(reg), log)
		failed(err)
	}
	return p, errors.Join(errs...)
}

// loadRules reads the rules file, knowing the tenants and destinations of this process.
func (p *parts) loadRules() (*rules.Set, error) {
	return replay.Load(p.cfg.evaluate.Rules, rules.Options{
		Tenants:         p.who.Load().IDs(),
		Destinations:    p.destinations.Names(),
		Irreversible:    p.destinations.Irreversible(),
		MaxPayloadBytes: p.cfg.evaluate.MaxPayloadBytes,
	})
}

// reload reads the tenants and then the rules again on SIGHUP. What is at fault leaves what was in force before.
func (p *parts) reload(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
		}
		if p.cfg.tenants != "" && p.server != nil {
			_ = p.server.Reload(func() (tenants.Set, error) { // it is in the log
				who, err := tenants.Load(p.cfg.tenants)
				if err == nil {
					p.who.Store(&who)
				}
				return who, err
			})
		}
		wait.Nudge(p.again)
	}
}

// recheckedQueue looks at messages between claim and delivery, and hands on those that still hold.
type recheckedQueue struct {
	*claim.Queue
	check *evaluate.Rechecker
}

func (q recheckedQueue) Claim(ctx context.Context, wants []pipeline.Want) ([]pipeline.Lease, error) {
	leases, err := q.Queue.Claim(ctx, wants)
	if err != nil {
		return leases, err
	}
	return q.check.Holding(ctx, leases, q.Queue.Finish)
}

// decideWith turns "no rule listens" into a nil Recorder; a nil *Plan inside the interface would not be one.
func decideWith(engine *evaluate.Engine) copyin.DecideFunc {
	return func(events []pipeline.Event) copyin.Recorder {
		if plan := engine.Decide(events); plan != nil {
			return plan
		}
		return nil
	}
}

// running lists what has to run, from the socket inwards: the order in which it stops.
func (p *parts) running(door net.Listener) []stages.Stage {
	var all []stages.Stage
	if p.server != nil {
		all = append(all,
			stages.New("ingest", func(ctx context.Context) error { return p.server.Serve(ctx, door) }),
			stages.New("memory limit", func(ctx context.Context) error {
				return memory.Limit(ctx, p.cfg.buffer.MaxBytes+p.cfg.copyin.RecentBytes, p.server.Reading)
			}),
			stages.New("buffer tuning", func(ctx context.Context) error { return p.buffer.Tune(ctx, p.usage, p.log) }),
			stages.New("buffer", p.buffer.Run))
	}
	all = append(all, stages.New("reload", p.reload))
	if p.sweeper != nil {
		all = append(all, stages.New("sweep", p.sweeper.Run))
	}
	if p.engine != nil && p.cfg.evaluate.Rules != "" {
		all = append(all, stages.New("rules", func(ctx context.Context) error {
			return p.engine.Watch(ctx, p.cfg.evaluate.Rules, p.loadRules, p.again)
		}))
	}
	if p.engine != nil { // also without rules: others may have some in force
		all = append(all, stages.New("rule report", func(ctx context.Context) error {
			return p.engine.Report(ctx, p.rulesDB)
		}))
	}
	var wake func()
	if p.dispatcher != nil {
		all = append(all, stages.New("deliver", p.dispatcher.Run), stages.New("claim", p.queue.Run))
		wake = p.dispatcher.Nudge
	}
	all = append(all, stages.New("notify", func(ctx context.Context) error { return p.notifier.Run(ctx, wake) }))
	if p.keeper != nil {
		all = append(all, stages.New("retain", p.keeper.Run))
	}
	all = append(all, stages.New("clock", p.clock.Run))
	return all
}

// checks are what readiness asks for: the database answers, and each role can do its work.
func (p *parts) checks(db pools) []func(context.Context) error {
	all := []func(context.Context) error{func(ctx context.Context) error {
		if err := db.query.Ping(ctx); err != nil {
			return fmt.Errorf("database: %w", err)
		}
		return nil
	}}
	if p.buffer != nil {
		all = append(all, func(ctx context.Context) error { return copyin.Check(ctx, db.query) },
			func(context.Context) error { return p.trouble() })
		all = append(all, func(context.Context) error {
			if fill := p.buffer.Fill(); fill > p.cfg.readyFill {
				return fmt.Errorf("buffer: %.0f %% full (admin.ready-fill is %g)", 100*fill, p.cfg.readyFill)
			}
			return nil
		})
	}
	if p.sweeper != nil {
		all = append(all, p.sweeper.Check)
	}
	if p.queue != nil {
		all = append(all, p.queue.Check)
	}
	if p.keeper != nil {
		all = append(all, p.keeper.Check)
	}
	return all
}
