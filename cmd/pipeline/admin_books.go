package main

import (
	"context"
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
)

// books answers GET /v1/books: what the process counted since it started beside what the database holds since then,
// and the differences that have to be zero. Its zero value says that the process is starting.
type books struct{ open atomic.Pointer[openBooks] }

type openBooks struct {
	counters prometheus.Gatherer
	pool     *pgxpool.Pool
	names    map[int32]string
	start    mark
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
		return m, fmt.Errorf("since: %q is no mark; take the mark of an earlier answer", text)
	}
	return m, nil
}

// begin opens the books.
func (b *books) begin(ctx context.Context, counters prometheus.Gatherer, pool *pgxpool.Pool, tenants map[string]int32) error {
	o := &openBooks{counters: counters, pool: pool, names: map[int32]string{}}
	for name, id := range tenants {
		o.names[id] = name
	}
	var err error
	if o.start, err = o.now(ctx); err != nil {
		return fmt.Errorf("books: %w", err)
	}
	b.open.Store(o)
	return nil
}

const lastMessageSQL = `select coalesce(max(message_id), 0) from outbox`

func (o *openBooks) now(ctx context.Context) (m mark, err error) {
	m.at = time.Now().Truncate(time.Microsecond)
	err = o.pool.QueryRow(ctx, lastMessageSQL).Scan(&m.message)
	return m, err
}

// booksAnswer is the answer of /v1/books.
type booksAnswer struct {
	// Since is from when on the database side counts; the process side always counts from its start.
	Since string `json:"since"`
	// Mark is this moment, for the since of a later question.
	Mark       string       `json:"mark"`
	Suppressed int64        `json:"suppressed"`
	Tenants    []bookTenant `json:"tenants"`
}

type bookTenant struct {
	Tenant   int32            `json:"tenant"`
	Name     string           `json:"name,omitempty"`
	Process  map[string]int64 `json:"process"`
	Database map[string]int64 `json:"database"`
	// Differences have to be zero while nothing is on its way. Those between the sides are left out where they do not
	// count from the same moment; they hold for the only process of a database, before anything is pruned.
	Differences map[string]int64 `json:"differences"`
}

// bookCounters names each line of the process side by its metric.
var bookCounters = map[string]string{
	"pipeline_ingest_received_events_total":    "received",
	"pipeline_ingest_rejected_events_total":    "rejected",
	"pipeline_ingest_refused_events_total":     "refused",
	"pipeline_buffer_in_flight_events":         "in_flight",
	"pipeline_buffer_failed_events_total":      "failed",
	"pipeline_copyin_stored_events_total":      "stored",
	"pipeline_copyin_duplicate_events_total":   "duplicate",
	"pipeline_copyin_quarantined_events_total": "quarantined",
	"pipeline_evaluate_decided_messages_total": "decided",
}

var bookLines = []string{"stored", "twice", "decided", "enqueued", "due", "leased", "sent", "skipped", "dead"}

func (b *books) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := b.open.Load()
	if o == nil {
		http.Error(w, "starting: the database is not ready yet", http.StatusServiceUnavailable)
		return
	}
	since, all := o.start, true
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = parseMark(text); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		all = false
	}
	answer, err := o.read(r.Context(), since, all)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, answer)
}

// read compares the sides. whole says that since is the start of the process.
func (o *openBooks) read(ctx context.Context, since mark, whole bool) (*booksAnswer, error) {
	mark, err := o.now(ctx)
	if err != nil {
		return nil, fmt.Errorf("books: %w", err)
	}
	answer := &booksAnswer{Since: since.String(), Mark: mark.String()}
	tenants := map[int32]*bookTenant{}
	of := func(id int32) *bookTenant {
		if tenants[id] == nil {
			t := &bookTenant{Tenant: id, Name: o.names[id], Process: map[string]int64{}, Database: map[string]int64{}, Differences: map[string]int64{}}
			for _, line := range bookCounters {
				t.Process[line] = 0
			}
			for _, line := range bookLines {
				t.Database[line] = 0
			}
			tenants[id] = t
		}
		return tenants[id]
	}
	for id := range o.names {
		of(id)
	}
	if answer.Suppressed, err = o.count(of); err != nil {
		return nil, err
	}
	if err := o.look(ctx, since, of); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(tenants)) {
		t := tenants[id]
		p, db := t.Process, t.Database
		t.Differences["received"] = p["received"] - p["rejected"] - p["refused"] - p["in_flight"] - p["failed"] - p["stored"] - p["duplicate"] - p["quarantined"]
		t.Differences["promises"] = db["decided"] + db["enqueued"] - db["due"] - db["leased"] - db["sent"] - db["skipped"] - db["dead"]
		t.Differences["twice"] = db["twice"]
		if whole {
			t.Differences["stored"] = p["stored"] - db["stored"]
			t.Differences["decided"] = p["decided"] - db["decided"]
		}
		answer.Tenants = append(answer.Tenants, *t)
	}
	return answer, nil
}

// count reads the process side off its metrics.
func (o *openBooks) count(of func(tenant int32) *bookTenant) (suppressed int64, err error) {
	families, err := o.counters.Gather()
	if err != nil {
		return 0, fmt.Errorf("books: %w", err)
	}
	for _, family := range families {
		line, known := bookCounters[family.GetName()]
		for _, m := range family.GetMetric() {
			value := int64(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			if family.GetName() == "pipeline_evaluate_suppressed_total" {
				suppressed += value
			}
			for _, l := range m.GetLabel() {
				if !known || l.GetName() != "tenant" {
					continue
				}
				id, err := strconv.ParseInt(l.GetValue(), 10, 32)
				if err != nil {
					return 0, fmt.Errorf("books: %s: %w", family.GetName(), err)
				}
				of(int32(id)).Process[line] += value
			}
		}
	}
	return suppressed, nil
}

// No index serves this: it reads all events, and sorts or hashes those since then. About 0.5 s for a million.
const eventBooksSQL = `
select tenant_id, sum(n)::bigint, sum(n - 1)::bigint
from (select tenant_id, event_id, count(*) n from events where received_at >= $1 group by tenant_id, event_id) e
group by tenant_id`

const promiseBooksSQL = `
select tenant_id,
    count(*) filter (where rule_id is not null),
    count(*) filter (where rule_id is null),
    count(*) filter (where status in ('pending', 'failed') and (locked_until is null or locked_until <= now())),
    count(*) filter (where status in ('pending', 'failed') and locked_until > now()),
    count(*) filter (where status = 'sent'),
    count(*) filter (where status = 'skipped'),
    count(*) filter (where status = 'dead')
from outbox where message_id > $1 group by tenant_id`

// look counts what the database holds, in one snapshot.
func (o *openBooks) look(ctx context.Context, since mark, of func(tenant int32) *bookTenant) error {
	readAll := func(tx pgx.Tx) error {
		var id int32
		var events [2]int64
		rows, err := tx.Query(ctx, eventBooksSQL, since.at)
		if err != nil {
			return err
		}
		if _, err := pgx.ForEachRow(rows, []any{&id, &events[0], &events[1]}, func() error {
			t := of(id)
			t.Database["stored"], t.Database["twice"] = events[0], events[1]
			return nil
		}); err != nil {
			return err
		}
		var n [7]int64
		rows, err = tx.Query(ctx, promiseBooksSQL, since.message)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&id, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6]}, func() error {
			for i, line := range bookLines[2:] {
				of(id).Database[line] = n[i]
			}
			return nil
		})
		return err
	}
	if err := pgx.BeginTxFunc(ctx, o.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, readAll); err != nil {
		return fmt.Errorf("books: %w", err)
	}
	return nil
}
