package books

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/pipeline"
)

// Handler answers GET /v1/books. Its zero value answers that the process is starting.
type Handler struct{ source atomic.Pointer[source] }

// source is where the two sides are read.
type source struct {
	counters prometheus.Gatherer
	pool     *pgxpool.Pool
	turns    *turns
	names    map[int32]string
	start    mark
	self     pipeline.UUID
}

// mark is a moment in the books: events count by when this node received them, promises by the order of their ids,
// since created_at is by another clock.
type mark struct {
	at      time.Time
	message int64
}

func (m mark) String() string {
	return m.at.UTC().Format(time.RFC3339Nano) + "_" + strconv.FormatInt(m.message, 10)
}

func parseMark(text string) (m mark, err error) {
	at, message, ok := strings.Cut(text, "_")
	if ok {
		if m.at, err = time.Parse(time.RFC3339Nano, at); err == nil {
			m.message, err = strconv.ParseInt(message, 10, 64)
		}
	}
	if !ok || err != nil {
		return m, fmt.Errorf("since: %q is not a mark; take the mark of an earlier answer", text)
	}
	return m, nil
}

// Begin opens the books: both sides count from now on. The process side is read off the metrics in counters, and
// tenants are named by their ids. After an error it may be called again. self is this process in the table
// sluice_processes, by which it knows of others that write. The database is read through pages, for one answer at a
// time.
func (h *Handler) Begin(ctx context.Context, counters prometheus.Gatherer, pages *pgxpool.Pool,
	tenants map[string]int32, self pipeline.UUID) error {
	s := &source{counters: counters, pool: pages, turns: newTurns(), names: map[int32]string{}, self: self}
	for name, id := range tenants {
		s.names[id] = name
	}
	var err error
	if s.start, err = s.now(ctx); err != nil {
		return fmt.Errorf("books: %w", err)
	}
	h.source.Store(s)
	return nil
}

const lastMessageSQL = `select coalesce(max(message_id), 0) from outbox`

func (s *source) now(ctx context.Context) (m mark, err error) {
	m.at = time.Now().Truncate(time.Microsecond)
	err = s.pool.QueryRow(ctx, lastMessageSQL).Scan(&m.message)
	return m, err
}

// ServeHTTP answers with an Answer.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := h.source.Load()
	if s == nil {
		http.Error(w, "starting: the database is not ready yet", http.StatusServiceUnavailable)
		return
	}
	since := s.start
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = parseMark(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	answer, err := s.turns.read(r.Context(), since, func(ctx context.Context) (*Answer, error) {
		return s.read(ctx, since)
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(answer) // the client has gone away
}

// tenants collects the books of each tenant as they are found.
type tenants struct {
	names map[int32]string
	books map[int32]*Tenant
}

func (t tenants) of(id int32) *Tenant {
	if t.books[id] == nil {
		t.books[id] = &Tenant{Tenant: id, Name: t.names[id]}
	}
	return t.books[id]
}

// read compares the sides: each with itself, and one with the other where nobody else has written and this process did
// nothing in between.
func (s *source) read(ctx context.Context, since mark) (*Answer, error) {
	mark, err := s.now(ctx)
	if err != nil {
		return nil, fmt.Errorf("books: %w", err)
	}
	answer := &Answer{Since: since.String(), Mark: mark.String()}
	if answer.OtherWriters, err = others(ctx, s.pool, s.self); err != nil {
		return nil, err
	}
	before, err := s.steady(ctx, answer)
	if err != nil {
		return nil, err
	}
	found := tenants{s.names, map[int32]*Tenant{}}
	for id := range s.names {
		found.of(id)
	}
	if err := s.look(ctx, since, found); err != nil {
		return nil, err
	}
	after, err := s.count(answer)
	if err != nil {
		return nil, err
	}
	quiet := maps.Equal(before, after)
	for id, p := range before {
		found.of(id).Process = p
		quiet = quiet && p.InFlight == 0
	}
	for _, id := range slices.Sorted(maps.Keys(found.books)) {
		t := found.books[id]
		t.compare(since == s.start && answer.OtherWriters == 0 && quiet)
		answer.Tenants = append(answer.Tenants, *t)
	}
	return answer, nil
}

// looks bounds how often counters are read again that do not add up: each is read by itself, so that an event which is
// on its way from one to the next may be missed by both, or counted twice, once but not each time.
const looks = 50

// steady reads the process side, again while it does not add up.
func (s *source) steady(ctx context.Context, answer *Answer) (byTenant map[int32]Process, err error) {
	for range looks {
		if byTenant, err = s.count(answer); err != nil {
			return nil, err
		}
		balanced := true
		for _, p := range byTenant {
			balanced = balanced && p.Difference() == 0
		}
		if balanced || !wait.For(ctx, time.Millisecond) {
			break
		}
	}
	return byTenant, nil
}

// line returns the line of the process side that a metric counts, or nil.
func (p *Process) line(metric string) *int64 {
	switch metric {
	case "sluice_ingest_received_events_total":
		return &p.Received
	case "sluice_ingest_rejected_events_total":
		return &p.Rejected
	case "sluice_ingest_refused_events_total":
		return &p.Refused
	case "sluice_buffer_in_flight_events":
		return &p.InFlight
	case "sluice_buffer_failed_events_total":
		return &p.Failed
	case "sluice_copyin_stored_events_total":
		return &p.Stored
	case "sluice_copyin_duplicate_events_total":
		return &p.Duplicate
	case "sluice_copyin_quarantined_events_total":
		return &p.Quarantined
	case "sluice_evaluate_decided_messages_total":
		return &p.Decided
	}
	return nil
}

// count reads the process side off its metrics.
func (s *source) count(answer *Answer) (map[int32]Process, error) {
	families, err := s.counters.Gather()
	if err != nil {
		return nil, fmt.Errorf("books: %w", err)
	}
	answer.Suppressed = 0
	byTenant := map[int32]Process{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			value := int64(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			if family.GetName() == "sluice_evaluate_suppressed_total" {
				answer.Suppressed += value
			}
			for _, l := range m.GetLabel() {
				if l.GetName() != "tenant" || (&Process{}).line(family.GetName()) == nil {
					continue
				}
				id, err := strconv.ParseInt(l.GetValue(), 10, 32)
				if err != nil {
					return nil, fmt.Errorf("books: %s: %w", family.GetName(), err)
				}
				p := byTenant[int32(id)]
				*p.line(family.GetName()) += value
				byTenant[int32(id)] = p
			}
		}
	}
	return byTenant, nil
}

// No index serves this: it reads all events, and sorts or hashes those since then. About 0.5 s for a million.
const eventsSQL = `
select tenant_id, sum(n)::bigint as stored, sum(n - 1)::bigint as twice
from (select tenant_id, event_id, count(*) n from events where received_at >= $1 group by tenant_id, event_id) e
group by tenant_id`

const promisesSQL = `
select tenant_id,
    count(*) filter (where rule_id is not null) as decided,
    count(*) filter (where rule_id is null) as enqueued,
    count(*) filter (where status in ('pending', 'failed') and (locked_until is null or locked_until <= now())) as due,
    count(*) filter (where status in ('pending', 'failed') and locked_until > now()) as leased,
    count(*) filter (where status = 'sent') as sent,
    count(*) filter (where status = 'skipped') as skipped,
    count(*) filter (where status = 'dead') as dead
from outbox where message_id > $1 group by tenant_id`

// row is what one of the two statements counted; the fields of the other stay zero.
type row struct {
	TenantID int32
	Database
}

// lookBounds leave time to read about a billion events.
var lookBounds = pgtx.Bounds{Idle: pgtx.Idle, Statement: 10 * time.Minute, Lock: pgtx.Idle}

// look counts what the database holds, in one snapshot.
func (s *source) look(ctx context.Context, since mark, found tenants) error {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgtx.InTx(ctx, s.pool, snapshot, lookBounds, func(tx pgx.Tx) error {
		events, err := query(ctx, tx, eventsSQL, since.at)
		if err != nil {
			return err
		}
		promises, err := query(ctx, tx, promisesSQL, since.message)
		if err != nil {
			return err
		}
		for _, r := range promises {
			found.of(r.TenantID).Database = r.Database
		}
		for _, r := range events {
			db := &found.of(r.TenantID).Database
			db.Stored, db.Twice = r.Stored, r.Twice
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("books: %w", err)
	}
	return nil
}

func query(ctx context.Context, tx pgx.Tx, sql string, since any) ([]row, error) {
	rows, err := tx.Query(ctx, sql, since)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByNameLax[row])
}
