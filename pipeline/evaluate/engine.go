// Package evaluate turns stored events into decisions: rows of the outbox, one for each destination of a rule.
//
// Rules are pure: Decide looks at a batch before its transaction and Plan.Record writes, within that transaction, what
// holds for the events that were newly stored. Events, decisions, remembered keys, cooldowns and caps therefore commit
// together or not at all; nothing survives a crash that was not committed, and a batch that is tried again is decided
// again. A rule that fails on an event is counted and skips that event; it never fails the batch or another rule.
// No expression can reach the network, another tenant or an address.
package evaluate

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"sluice.example/sluice/pipeline"
)

// Config of the stage.
type Config struct {
	// Rules is the rules file, or a folder of them. Empty: no rules. Default empty.
	Rules string
	// MaxPayloadBytes bounds the payload of one message, in bytes; a larger one is refused and counted. Default 65536,
	// a guess: what common webhook receivers take without being told.
	MaxPayloadBytes int
}

// DefaultConfig is complete.
func DefaultConfig() Config { return Config{MaxPayloadBytes: 64 << 10} }

// Engine decides by the rules in force. It is safe for concurrent use.
type Engine struct {
	cfg       Config
	set       atomic.Pointer[Set]
	metrics   *Metrics
	log       *slog.Logger
	onDecided func(messages int)
	// lastError is of the goroutine in Watch.
	lastError string

	tallyMu sync.Mutex
	tallies map[string]*tally
}

// New makes an engine without rules. onDecided, which may be nil, is called after each COMMIT with the number of
// messages that it made due; it must not block.
func New(cfg Config, metrics *Metrics, log *slog.Logger, onDecided func(messages int)) (*Engine, error) {
	if cfg.MaxPayloadBytes < 1<<10 || cfg.MaxPayloadBytes > 16<<20 {
		return nil, fmt.Errorf("evaluate.max-payload-bytes is %d; set it from 1024 to 16777216", cfg.MaxPayloadBytes)
	}
	if metrics == nil || log == nil {
		return nil, errors.New("evaluate: metrics and log are needed")
	}
	if onDecided == nil {
		onDecided = func(int) {}
	}
	return &Engine{cfg: cfg, metrics: metrics, log: log, onDecided: onDecided, tallies: map[string]*tally{}}, nil
}

// Use puts a set of rules into force. A batch sees the set that was in force when Decide began.
func (e *Engine) Use(set *Set) {
	e.set.Store(set)
	e.metrics.inForce(set)
}

// Decide evaluates the rules on a batch. It keeps the slice until the plan is committed or dropped, changes nothing,
// and costs an event that no rule listens to one look into a map. Nil: no rule listens to any of the events.
func (e *Engine) Decide(events []pipeline.Event) *Plan {
	set := e.set.Load()
	if set == nil {
		return nil
	}
	var plan *Plan
	for i := range events {
		lists := set.listeners(&events[i])
		if len(lists[0])+len(lists[1]) == 0 {
			continue
		}
		if plan == nil {
			plan = &Plan{recorder: recorder{engine: e}, set: set, events: events, looked: make([]int, 0, len(events)-i)}
		}
		plan.look(i, lists)
	}
	return plan
}

// listeners are those of an event: by its name, and to every name.
func (s *Set) listeners(ev *pipeline.Event) [2][]listener {
	idx := s.byTenant[ev.Tenant]
	if idx == nil {
		idx = s.every
	}
	return [2][]listener{idx.byName[ev.Name], idx.any}
}
