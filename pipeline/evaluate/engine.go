// Package evaluate turns what rules find into decisions: rows of the outbox, one for each destination of a rule. It
// owns the tables dedupe_keys, rule_subjects, rule_status, rule_hours, absence_* and rate_*.
//
// There are two occasions. A batch of events: Decide looks at it before its transaction, and Plan.Record writes, within
// that transaction, what holds for the events that were newly stored. And time: the Sweeper decides about timers that
// have run out, digests that are due and windows of rates.
//
// Events, decisions, remembered keys, cooldowns and caps commit together or not at all. Nothing survives a crash that
// was not committed; a batch that is tried again is decided again, and what was due stays due. A rule that fails on an
// event is counted and skips that event; it never fails the batch or another rule.
package evaluate

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules"
)

// Config of the stage.
type Config struct {
	// Rules is the rules file, or a folder of them. Empty: no rules. Default empty.
	Rules string
	// MaxPayloadBytes bounds the payload of one message, in bytes; a larger one is a failure of its rule, and counted.
	// Default 65536, see rules.DefaultOptions.
	MaxPayloadBytes int
	// SweepEvery is the time between two looks at what is due. Default 5s: it adds to the wait of every absence rule, and
	// an idle look costs well under a millisecond for each rule.
	SweepEvery time.Duration
	// RuleState is how long timers, counts and states are kept after the last node dropped their rule; 0 keeps them.
	// Default 400 days, a year and a month. It has to be longer than lookbacks and baselines, or a rule that comes back
	// begins anew.
	RuleState time.Duration
	// IdleTimeout is how long a transaction of a sweep, and what it has locked, outlasts a process that has stopped.
	// Default 10s: batches with events of those subjects wait for it.
	IdleTimeout time.Duration
}

const day = 24 * time.Hour

// DefaultConfig is complete.
func DefaultConfig() Config {
	return Config{
		MaxPayloadBytes: rules.DefaultOptions().MaxPayloadBytes,
		SweepEvery:      5 * time.Second,
		RuleState:       400 * day,
		IdleTimeout:     pgtx.Idle,
	}
}

func (c Config) validate() error {
	var errs []error
	if c.MaxPayloadBytes < 1<<10 || c.MaxPayloadBytes > 16<<20 {
		errs = append(errs, fmt.Errorf("evaluate.max-payload-bytes is %d; set it from 1024 to 16777216", c.MaxPayloadBytes))
	}
	if most := reseedAfter / 2; c.SweepEvery < time.Millisecond || c.SweepEvery > most {
		errs = append(errs, fmt.Errorf("sweep.every is %s; set it from 1ms to %s", c.SweepEvery, duration.Format(most)))
	}
	if c.IdleTimeout < 100*time.Millisecond || c.IdleTimeout > sweepTimeout {
		errs = append(errs, fmt.Errorf("sweep.idle-timeout is %s; set it from 100ms to %s", c.IdleTimeout,
			duration.Format(sweepTimeout)))
	}
	if c.RuleState < 0 {
		errs = append(errs, fmt.Errorf("retain.rule-state is %s; give a period, or 0 to keep for good", c.RuleState))
	}
	return errors.Join(errs...)
}

// Engine decides by the rules in force. It is safe for concurrent use.
type Engine struct {
	cfg       Config
	set       atomic.Pointer[rules.Set]
	metrics   *Metrics
	log       *slog.Logger
	onDecided func(messages int)
	// lastError and lastSum are of the goroutine in Watch: why the files could not be loaded, and their rules.Sum.
	lastError string
	lastSum   [32]byte

	tallyMu sync.Mutex
	tallies map[string]*tally
	// healths are of the goroutine in Report.
	healths map[string]health

	// stores: batches are decided here, so events are stored by this process.
	stores atomic.Bool
	// changed tells that the rules changed; see leave.
	changed chan struct{}
	gapMu   sync.Mutex
	// left is since when rules are away that this process had in force, by the names of their timers and metrics.
	left map[string]time.Time
}

// New makes an engine without rules. onDecided, which may be nil, is called after each COMMIT with the number of
// messages that it made due; it must not block.
func New(cfg Config, metrics *Metrics, log *slog.Logger, onDecided func(messages int)) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if metrics == nil || log == nil {
		return nil, errors.New("evaluate: metrics and log are needed")
	}
	if onDecided == nil {
		onDecided = func(int) {}
	}
	return &Engine{cfg: cfg, metrics: metrics, log: log, onDecided: onDecided, tallies: map[string]*tally{},
		changed: make(chan struct{}, 1), left: map[string]time.Time{}}, nil
}

// Use puts a set of rules into force. A batch sees the set that was in force when Decide began.
func (e *Engine) Use(set *rules.Set) {
	e.leave(e.set.Swap(set), set)
	e.metrics.inForce(set)
}

// Fingerprint is that of the rules in force, "" where there are none.
func (e *Engine) Fingerprint() string { return e.inForce().Fingerprint() }

// InForce returns the rules by which it decides; never nil. It is safe for concurrent use.
func (e *Engine) InForce() *rules.Set { return e.inForce() }

// inForce is never nil.
func (e *Engine) inForce() *rules.Set {
	if set := e.set.Load(); set != nil {
		return set
	}
	return &rules.Set{}
}

// Decide evaluates the rules on a batch. It keeps the slice until the plan is committed or dropped, and changes
// nothing. Nil: no rule listens to any of the events.
func (e *Engine) Decide(events []pipeline.Event) *Plan {
	if !e.stores.Load() {
		e.stores.Store(true)
	}
	set := e.set.Load()
	if set == nil {
		return nil
	}
	found := set.Decide(events)
	if found == nil {
		return nil
	}
	return &Plan{recorder: recorder{engine: e}, found: found}
}
