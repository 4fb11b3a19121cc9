package copyin

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func undecided([]pipeline.Event) Recorder { return nil }

// newWriter makes one whose deadlines suit tests: never reached where the database answers.
func newWriter(t testing.TB, pool *pgxpool.Pool, set ...func(*Config)) *Writer {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Deadline = time.Minute
	for _, f := range set {
		f(&cfg)
	}
	w, err := New(cfg, pool, undecided, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.boundAttempts(30 * time.Second)
	return w
}

// today is a time inside a partition that exists, with microseconds.
func today() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// event makes one with a key of its own; each call is a little later.
func event(name string) pipeline.Event {
	now := today()
	return pipeline.Event{
		ID: pipeline.NewUUIDv4(), Tenant: 1, Name: name, OccurredAt: now, ReceivedAt: now, UserID: "u-1",
		Properties: []byte(`{"n":1}`),
	}
}

func events(n int) []pipeline.Event {
	es := make([]pipeline.Event, n)
	for i := range es {
		es[i] = event(fmt.Sprintf("e%d", i))
	}
	return es
}

func mustWrite(t testing.TB, w *Writer, es []pipeline.Event) []pipeline.Verdict {
	t.Helper()
	verdicts, err := w.Write(t.Context(), es)
	if err != nil {
		t.Fatalf("Write of %d events: %v", len(es), err)
	}
	return verdicts
}

// outcomes prints verdicts as one letter each: s, d, r.
func outcomes(verdicts []pipeline.Verdict) string {
	var s strings.Builder
	for _, v := range verdicts {
		s.WriteByte(v.Outcome.String()[0])
	}
	return s.String()
}

func checkOutcomes(t testing.TB, verdicts []pipeline.Verdict, want string) {
	t.Helper()
	if got := outcomes(verdicts); got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
}

func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func checkRows(t testing.TB, pool *pgxpool.Pool, want int) {
	t.Helper()
	if got := scan[int](t, pool, `select count(*) from events`); got != want {
		t.Errorf("%d rows in events, want %d", got, want)
	}
}

func TestEncodeRoundTrip(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	full := pipeline.Event{
		ID: pipeline.HashUUID("order-17"), ClientID: "order-17", Tenant: -2147483648, Name: "größe \"x\"\t\n\\N",
		OccurredAt: today(), ReceivedAt: time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
		AnonymousID: "a", UserID: strings.Repeat("u", 70000), SessionID: "\\.",
		PageURL: "https://x/?q=%20", Referrer: "\x01", UserAgent: "日本語",
		Properties: []byte(`{"big":12345678901234567890.123456789012345678901234567890,"s":"C:\\u0000dir","n":null}`),
	}
	bare := pipeline.Event{ID: pipeline.UUID{}, Tenant: 2147483647, Name: "n", OccurredAt: today(),
		ReceivedAt: time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)}
	old := pipeline.Event{ID: pipeline.NewUUIDv4(), Tenant: 1, Name: "before 2000",
		OccurredAt: time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC),
		ReceivedAt: time.Date(1969, 12, 31, 23, 59, 59, 1000, time.UTC)}
	want := []pipeline.Event{full, bare, old}
	checkOutcomes(t, mustWrite(t, w, slices.Clone(want)), "sss")
	var row pipeline.EventRow
	var got []pipeline.Event
	rows, _ := pool.Query(t.Context(), `
select `+pipeline.EventColumns+`
from unnest($1::integer[]) with ordinality as t (tenant, i) left join events e on tenant_id = tenant order by i`,
		[]int32{full.Tenant, bare.Tenant, 0, old.Tenant})
	if _, err := pgx.ForEachRow(rows, row.Fields(), func() error {
		e, ok := row.Event()
		if ok != (len(got) != 2) {
			t.Errorf("row %d is an event: %v; want one in all but that of a tenant without any", len(got), ok)
		}
		got = append(got, e)
		return nil
	}); err != nil || len(got) != 4 {
		t.Fatalf("%d rows, %v; want 4", len(got), err)
	}
	got = slices.Delete(got, 2, 3)
	for i, e := range want {
		// jsonb keeps the value and not the text.
		if (got[i].Properties == nil) != (e.Properties == nil) {
			t.Errorf("properties of %q = %s, want %s", e.Name, got[i].Properties, e.Properties)
		}
		const sameSQL = `select $1::text::jsonb = $2::text::jsonb`
		if e.Properties != nil && !scan[bool](t, pool, sameSQL, string(e.Properties), string(got[i].Properties)) {
			t.Errorf("properties = %s, want %s", got[i].Properties, e.Properties)
		}
		got[i].Properties = e.Properties
		if !reflect.DeepEqual(got[i], e) {
			t.Errorf("the row is %+v, want %+v", got[i], e)
		}
	}
	// Empty texts are stored as NULL.
	if n := scan[int](t, pool, `
select num_nulls(anonymous_id, user_id, session_id, page_url, referrer, user_agent, properties, client_id)
from events where tenant_id = $1`, bare.Tenant); n != 8 {
		t.Errorf("%d columns of an event with nothing but its key and name are NULL, want 8", n)
	}
}

func TestRepeatsInsideABatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	x := event("first")
	other := x
	other.Name = "second"
	third := x
	third.Name = "third"
	later := x
	later.OccurredAt = x.OccurredAt.Add(time.Microsecond) // another event
	tenant := x
	tenant.Tenant = 2 // another tenant's
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{x, event("a"), other, third, later, tenant}), "ssddss")
	checkRows(t, pool, 4)
	const nameSQL = `select event_name from events where event_id = $1 and occurred_at = $2 and tenant_id = 1`
	if got := scan[string](t, pool, nameSQL, x.ID, x.OccurredAt); got != "first" {
		t.Errorf("the event stored is %q, want the first of the batch", got)
	}
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{third, event("b"), later, later}), "dsdd")
	checkRows(t, pool, 5)
}

func TestOneRepeatInsideAndOneStored(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	es := events(10_000)
	mustWrite(t, newWriter(t, pool), es[7:8])
	es[9000] = es[3]
	got := outcomes(mustWrite(t, w, es))
	if strings.Count(got, "s") != 9998 || got[7] != 'd' || got[9000] != 'd' {
		t.Errorf("%d stored, outcomes of the repeats %c %c; want 9998, d, d",
			strings.Count(got, "s"), got[7], got[9000])
	}
	checkRows(t, pool, 9999)
}

// Batches with repeats of what another process stored make the writer look all keys up after a while, and no more
// later.
func TestLooksFirstWhereRepeatsAreUsual(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w, elsewhere := newWriter(t, pool), newWriter(t, pool)
	repeat := func() {
		known := event("known")
		mustWrite(t, elsewhere, []pipeline.Event{known})
		checkOutcomes(t, mustWrite(t, w, []pipeline.Event{event("new"), known}), "sd")
	}
	for range 20 {
		repeat()
	}
	conflicts := counterValue(t, w.m.conflicts)
	if conflicts == 0 {
		t.Error("no COPY ran into a key that another writer had stored, want the first ones")
	}
	repeat()
	if got := counterValue(t, w.m.conflicts); got != conflicts {
		t.Errorf("a batch after 20 with repeats ran into a conflict (%v, before %v); want it to look first",
			got, conflicts)
	}
	for range 50 {
		mustWrite(t, w, events(1))
	}
	if got := w.misses.recent(); got >= w.lookupFirst {
		t.Errorf("after 50 batches without repeats the share is %v, want below %v", got, w.lookupFirst)
	}
}

func TestEventsWithoutATime(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	x := event("x")
	x.TimeUnknown = true
	later := x
	later.OccurredAt = x.OccurredAt.Add(90 * time.Minute)
	later.ReceivedAt = later.OccurredAt
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{x, event("a"), later}), "ssd")
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{event("b"), later}), "sd")
	timed := event("timed")
	repeat := timed
	repeat.TimeUnknown, repeat.OccurredAt = true, timed.OccurredAt.Add(time.Second)
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{timed, timed, repeat}), "sdd")
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{repeat}), "d")
	old := later
	old.OccurredAt = x.OccurredAt.Add(72 * time.Hour) // outside of the window, on a day without a partition
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{old}), "s")
	checkRows(t, pool, 5)
}

// An id counts together with its time, in one batch and in several; without a time it counts alone.
func TestSameIDAtAnotherTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	first := event("first")
	second, third, timeless := first, first, first
	second.OccurredAt = first.OccurredAt.Add(time.Second)
	third.OccurredAt = first.OccurredAt.AddDate(0, 0, -1)
	timeless.OccurredAt, timeless.TimeUnknown = first.OccurredAt.Add(time.Hour), true
	w := newWriter(t, pool)
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{first, second, first}), "ssd")
	for _, w := range []*Writer{w, newWriter(t, pool)} { // one remembers its keys, the other does not
		checkOutcomes(t, mustWrite(t, w, []pipeline.Event{second, timeless, first}), "ddd")
	}
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{third}), "s")
	checkOutcomes(t, mustWrite(t, newWriter(t, pool), []pipeline.Event{third}), "d")
	checkRows(t, pool, 3)
}

// TestEventsWithoutATimeFarApart: each is looked up around its own time, however far the others of its batch are.
func TestEventsWithoutATimeFarApart(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	const day = 24 * time.Hour
	ago := func(e pipeline.Event, d time.Duration) pipeline.Event {
		e.TimeUnknown, e.OccurredAt = true, e.OccurredAt.Add(-d)
		return e
	}
	now, between, old := event("now"), event("between"), event("old")
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{ago(now, 0), ago(between, 150*day), ago(old, 300*day)}), "sss")
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{
		ago(old, 300*day-time.Minute), ago(now, time.Minute), ago(between, 150*day+36*time.Hour), event("new"),
	}), "ddds")
	// Its own window does not reach the day on which it is stored, those of the others reach from one side to the other.
	checkOutcomes(t, mustWrite(t, w, []pipeline.Event{ago(now, 0), ago(between, 100*day), ago(old, 300*day)}), "dsd")
}

func TestMissingPartitionsAreMade(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	es := events(5)
	es[1].OccurredAt = es[1].OccurredAt.AddDate(-3, 0, 0)
	es[3].OccurredAt = es[3].OccurredAt.AddDate(0, 0, 40)
	checkOutcomes(t, mustWrite(t, w, es), "sssss")
	if got := counterValue(t, w.m.partitions); got != 2 {
		t.Errorf("%v partitions made, want 2", got)
	}
	checkOutcomes(t, mustWrite(t, w, es), "ddddd")
	checkRows(t, pool, 5)
}

func TestEmptyBatch(t *testing.T) {
	t.Parallel()
	verdicts, err := newWriter(t, pgtest.New(t)).Write(t.Context(), nil)
	if len(verdicts) != 0 || err != nil {
		t.Errorf("Write of nothing = %v, %v", verdicts, err)
	}
}

func TestConfigFaultsAreAllNamed(t *testing.T) {
	_, err := New(Config{RecentBytes: -1}, nil, undecided, nil, nil)
	for _, key := range []string{"deadline", "dedupe-window", "recent-bytes"} {
		if err == nil || !strings.Contains(err.Error(), "copyin."+key) {
			t.Errorf("New of an invalid configuration = %v; want copyin.%s named", err, key)
		}
	}
}

// Every series whose labels are known is there at 0, so that its first incident is a change.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	NewMetrics(reg, 1, 7)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"stored_events_total": 2, "duplicate_events_total": 2, "quarantined_events_total": 2, "batches_total": 3,
		"retries_total": 10, "in_doubt_commits_total": 3, "failed_batches_total": 4,
	}
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "sluice_copyin_")
		if n, ok := want[name]; ok && n == len(f.Metric) {
			delete(want, name)
		}
	}
	if len(want) > 0 {
		t.Errorf("not that many series at the start: %v", want)
	}
}
