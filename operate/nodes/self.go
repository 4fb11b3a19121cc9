package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// Identity is what a process is as long as it runs.
type Identity struct {
	ID      pipeline.UUID
	Name    string
	Address string
	Version string
	Roles   []string
	// Writes: it stores events or decides. Others then know that the tables do not hold their part alone.
	Writes bool
}

// Self is this process's row in the table of nodes. Run it once, after Register.
type Self struct {
	Identity
	pool     *pgxpool.Pool
	counters prometheus.Gatherer
	log      *slog.Logger
	nudge    chan struct{}

	mu      sync.Mutex
	tuning  json.RawMessage
	applied int64
	rules   func() string
	cpu     float64 // seconds, when it was last told
	cpuAt   time.Time
}

// New makes it. Its state is read off the metrics in counters.
func New(who Identity, pool *pgxpool.Pool, counters prometheus.Gatherer, log *slog.Logger) *Self {
	return &Self{Identity: who, pool: pool, counters: counters, log: log, nudge: make(chan struct{}, 1)}
}

// ReportRules sets where the hash of the rules in force comes from. Call it before Run.
func (s *Self) ReportRules(hash func() string) { s.rules = hash }

// Tuned says what the node has made of the settings that operators changed, up to a revision, and lets others know at
// once. tuning is JSON. It is safe for concurrent use.
func (s *Self) Tuned(revision int64, tuning json.RawMessage) {
	s.mu.Lock()
	s.applied, s.tuning = revision, tuning
	s.mu.Unlock()
	wait.Nudge(s.nudge)
}

// seenEvery is how often a process says that it runs.
const seenEvery = 5 * time.Second

// registerSQL forgets processes of a week ago as well: no books go back that far that were opened before.
const registerSQL = `
with gone as (delete from sluice_processes where seen_at < now() - interval '7 days')
insert into sluice_processes (process_id, writes, name, address, version, roles)
values ($1, $2, $3, $4, $5, $6) on conflict do nothing`

// Register makes the row. It may be repeated.
func (s *Self) Register(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, registerSQL, s.ID, s.Writes, s.Name, s.Address, s.Version, s.Roles)
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	return nil
}

const (
	seenSQL = `
update sluice_processes
set seen_at = now(), applied_revision = $2, rules_hash = $3, state = $4::text::jsonb
where process_id = $1`

	endedSQL = `update sluice_processes set seen_at = now(), ended_at = now() where process_id = $1`
)

// Run tells other processes that this one runs, until ctx ends, and then that it has ended. A failure is logged once
// and tried again: while the database is away, or read-only, nobody writes.
func (s *Self) Run(ctx context.Context) error {
	tick := time.NewTicker(seenEvery)
	defer tick.Stop()
	failing := false
	for {
		err := s.tell(ctx)
		if err != nil && !failing {
			s.log.Warn("other processes were not told that this one runs; it is tried again", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), seenEvery)
			defer cancel()
			if _, err := s.pool.Exec(limit, endedSQL, s.ID); err != nil {
				s.log.Warn("other processes were not told that this one ended", "error", err)
			}
			return nil
		case <-tick.C:
		case <-s.nudge:
		}
	}
}

func (s *Self) tell(ctx context.Context) error {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), seenEvery)
	defer cancel()
	families, err := s.counters.Gather()
	if err != nil {
		s.log.Warn("some metrics could not be read", "error", err)
	}
	s.mu.Lock()
	state := s.state(families, time.Now())
	state.Tuning = s.tuning
	applied := s.applied
	s.mu.Unlock()
	hash := ""
	if s.rules != nil {
		hash = s.rules()
	}
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	tag, err := s.pool.Exec(limit, seenSQL, s.ID, applied, hash, string(text))
	if err == nil && tag.RowsAffected() == 0 { // another database, or it was taken for gone
		err = s.Register(limit)
	}
	return err
}

// mostGates bounds the state to a few kilobytes.
const mostGates = 50

// state reads how the process is off its metrics.
func (s *Self) state(families []*dto.MetricFamily, now time.Time) (state State) {
	var capacity float64
	gates := map[string]Gate{}
	for _, f := range families {
		sum := 0.0
		for _, m := range f.GetMetric() {
			v := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			sum += v
			if f.GetName() == "sluice_deliver_paused" || f.GetName() == "sluice_deliver_breaker_open" {
				name := m.GetLabel()[0].GetValue()
				g := gates[name]
				g.Destination = name
				g.Paused = g.Paused || f.GetName() == "sluice_deliver_paused" && v > 0
				g.Open = g.Open || f.GetName() == "sluice_deliver_breaker_open" && v > 0
				gates[name] = g
			}
		}
		switch f.GetName() {
		case "process_cpu_seconds_total":
			if !s.cpuAt.IsZero() && now.After(s.cpuAt) {
				state.CPU = (sum - s.cpu) / now.Sub(s.cpuAt).Seconds()
			}
			s.cpu, s.cpuAt = sum, now
		case "process_resident_memory_bytes":
			state.MemoryBytes = sum
		case "sluice_buffer_capacity_bytes":
			capacity = sum
		case "sluice_buffer_used_bytes":
			state.BufferFill = &sum
		case "sluice_deliver_held_messages":
			state.Held = &sum
		}
	}
	if state.BufferFill != nil && capacity > 0 {
		*state.BufferFill /= capacity
	}
	for _, g := range gates {
		if g.Paused || g.Open {
			state.Gates = append(state.Gates, g)
		}
	}
	slices.SortFunc(state.Gates, func(a, b Gate) int { return cmp.Compare(a.Destination, b.Destination) })
	state.Gates = state.Gates[:min(len(state.Gates), mostGates)]
	return state
}
