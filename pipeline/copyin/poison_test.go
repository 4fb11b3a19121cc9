package copyin

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

func counterValue(t testing.TB, c prometheus.Collector) float64 {
	t.Helper()
	return testutil.ToFloat64(c)
}

// The ways in which PostgreSQL refuses a row named "bad": the error names the row, or it comes at the end and does not.
const checkSQL = `alter table events add constraint no_bad check (event_name <> 'bad')`
const rowTriggerSQL = `
create function refuse() returns trigger language plpgsql as $$
begin
    if new.event_name = 'bad' then raise exception 'never this one' using column = 'event_name'; end if;
    return new;
end $$;
create trigger refuse before insert on events for each row execute function refuse()`
const statementTriggerSQL = `
create function refuse() returns trigger language plpgsql as $$
begin
    if exists (select from fresh where event_name = 'bad') then
        raise exception 'one of these' using errcode = '22000';
    end if;
    return null;
end $$;
create trigger refuse after insert on events referencing new table as fresh
for each statement execute function refuse()`

func withBad(n int, bad ...int) []pipeline.Event {
	es := events(n)
	for _, i := range bad {
		es[i].Name = "bad"
	}
	return es
}

func TestPoisonRowsGoToQuarantine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, ddl       string
		n               int
		bad             []int
		sqlstate, field string
		reason          string
		copies          float64 // at most
	}{
		{"a check names the row", checkSQL, 100, []int{40}, "23514", "", "no_bad", 2},
		{"a trigger names the row", rowTriggerSQL, 100, []int{0, 50, 99}, "P0001", "event_name", "never this one", 4},
		{"no row is named", statementTriggerSQL, 1000, []int{999}, "22000", "", "one of these", 20},
		{"no row is named, several", statementTriggerSQL, 64, []int{0, 1, 40}, "22000", "", "one of these", 20},
		{"all of them", checkSQL, 3, []int{0, 1, 2}, "23514", "", "no_bad", 4},
		{"the only one, not named", statementTriggerSQL, 1, []int{0}, "22000", "", "one of these", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec(t, pool, c.ddl)
			w := newWriter(t, pool)
			es := withBad(c.n, c.bad...)
			verdicts := mustWrite(t, w, es)
			want := bytes.Repeat([]byte("s"), c.n)
			for _, i := range c.bad {
				want[i] = 'r'
				if v := verdicts[i]; v.Field != c.field || !strings.Contains(v.Reason, c.reason) {
					t.Errorf("verdict %d = %+v, want field %q and a reason with %q", i, v, c.field, c.reason)
				}
			}
			checkOutcomes(t, verdicts, string(want))
			checkRows(t, pool, c.n-len(c.bad))
			const quarantinedSQL = `select count(*) from quarantine where sqlstate = $1`
			if got := scan[int](t, pool, quarantinedSQL, c.sqlstate); got != len(c.bad) {
				t.Errorf("%d rows in quarantine with %s, want %d", got, c.sqlstate, len(c.bad))
			}
			if got := counterValue(t, w.m.isolations); got > c.copies {
				t.Errorf("%v COPYs failed, want at most %v", got, c.copies)
			}
			if got := counterValue(t, w.m.quarantined); got != float64(len(c.bad)) {
				t.Errorf("%v events counted as quarantined, want %d", got, len(c.bad))
			}
			// A client that repeats the batch gets the same answer, and the quarantine no second row.
			for i := range want {
				if want[i] == 's' {
					want[i] = 'd'
				}
			}
			checkOutcomes(t, mustWrite(t, w, es), string(want))
			if got := scan[int](t, pool, `select count(*) from quarantine`); got != len(c.bad) {
				t.Errorf("%d rows in quarantine after a repeat, want %d", got, len(c.bad))
			}
		})
	}
}

func TestEveryOtherRowIsPoison(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, checkSQL)
	w := newWriter(t, pool)
	es := events(2000)
	for i := range es {
		if i%2 == 0 {
			es[i].Name = "bad"
		}
	}
	if got := outcomes(mustWrite(t, w, es)); got != strings.Repeat("rs", 1000) {
		t.Errorf("outcomes %s, want every other rejected", got)
	}
	checkRows(t, pool, 1000)
}

// What jsonb cannot hold passes a door that does not look closely enough; the error then comes from COPY itself.
func TestPoisonPropertiesKeepTheirBytes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	w := newWriter(t, pool)
	es := events(3)
	es[1].Properties = []byte(`{"nul":"\u0000","n":1.2300000000000000000001}`)
	es[1].UserAgent, es[1].ClientID = `<"quoted">`, "order-17"
	verdicts := mustWrite(t, w, es)
	checkOutcomes(t, verdicts, "srs")
	if verdicts[1].Field != "properties" || verdicts[1].Reason == "" {
		t.Errorf("verdict = %+v, want field properties and a reason", verdicts[1])
	}
	kept := scan[[]byte](t, pool, `select event from quarantine where event_id = $1`, es[1].ID)
	var posted struct {
		EventID    string          `json:"event_id"`
		OccurredAt string          `json:"occurred_at"`
		UserAgent  string          `json:"user_agent"`
		Properties json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(kept, &posted); err != nil {
		t.Fatalf("the event in quarantine is no JSON: %v: %s", err, kept)
	}
	if posted.EventID != "order-17" || posted.UserAgent != `<"quoted">` ||
		!bytes.Equal(posted.Properties, es[1].Properties) ||
		posted.OccurredAt != es[1].OccurredAt.Format("2006-01-02T15:04:05.999999Z") {
		t.Errorf("event in quarantine = %s, want it as it was posted", kept)
	}
}

// A repeat inside the batch shares the fate of the event that it repeats.
func TestRepeatOfAPoisonRowIsRejectedToo(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, checkSQL)
	w := newWriter(t, pool)
	es := withBad(3, 1)
	es = append(es, es[1], es[2])
	checkOutcomes(t, mustWrite(t, w, es), "srsrd")
}

// A unique index that is none of ours must not send the writer round in circles.
func TestUniqueIndexOfSomebodyElseIsPoison(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `
create table sessions (session_id text primary key);
create function enter() returns trigger language plpgsql as $$
begin insert into sessions values (new.session_id); return new; end $$;
create trigger enter before insert on events for each row execute function enter()`)
	w := newWriter(t, pool)
	es := events(5)
	for i := range es {
		es[i].SessionID = string(rune('a' + i))
	}
	mustWrite(t, w, es[:1])
	es[3].SessionID = "a"
	checkOutcomes(t, mustWrite(t, w, es), "dssrs")
}

// A trigger that drops a row without an error: the event is not stored, and says so.
func TestRowThatTheDatabaseDropsIsNotStored(t *testing.T) {
	t.Parallel()
	for way, set := range map[string]func(*Writer){
		"straight":       func(*Writer) {},
		"looked up":      func(w *Writer) { w.lookupFirst = 0 },
		"with decisions": func(w *Writer) { w.decide = func([]pipeline.Event) Recorder { return &books{} } },
	} {
		pool := pgtest.New(t)
		exec(t, pool, `
create function drop() returns trigger language plpgsql as $$
begin
    if new.event_name = 'bad' then return null; end if;
    if new.event_name = 'worse' then raise exception 'worse'; end if;
    return new;
end $$;
create trigger drop before insert on events for each row execute function drop()`)
		w := newWriter(t, pool)
		set(w)
		es := withBad(6, 1, 4)
		checkOutcomes(t, mustWrite(t, w, es), "srssrs")
		checkRows(t, pool, 4)
		const whySQL = `select count(*) from quarantine where reason like 'the database dropped it%'`
		if n := scan[int](t, pool, whySQL); n != 2 {
			t.Errorf("%s: %d rows in quarantine, want 2", way, n)
		}
		if s, q := counterValue(t, w.m.stored), counterValue(t, w.m.quarantined); s != 4 || q != 2 {
			t.Errorf("%s: %v stored and %v quarantined, want 4 and 2", way, s, q)
		}
		checkOutcomes(t, mustWrite(t, w, es), "drddrd")
		checkOutcomes(t, mustWrite(t, w, withBad(1, 0)), "r")
		mixed := withBad(5, 1)
		mixed[3].Name = "worse"
		checkOutcomes(t, mustWrite(t, w, mixed), "srsrs")
	}
}

// A day whose partition retention has detached and not dropped yet has a table and takes no rows. Nor can a partition
// be made where the role may not. The other events of the batch are stored, and that day's, too, once it is dropped.
func TestDayThatCanHaveNoPartitionIsPoison(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, ddl string }{
		{"detached", `select create_events_partition('2020-01-02'); alter table events detach partition events_20200102`},
		{"not allowed", `create or replace function create_events_partition(day date) returns boolean language plpgsql as
			$$ begin raise insufficient_privilege; end $$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.New(t)
			exec(t, pool, c.ddl)
			w := newWriter(t, pool)
			es := events(6)
			es[4].OccurredAt = time.Date(2020, 1, 2, 12, 0, 0, 0, time.UTC)
			checkOutcomes(t, mustWrite(t, w, es), "ssssrs")
			const lateSQL = `select count(*) from quarantine where event_id = $1 and sqlstate = '23514'`
			if got := scan[int](t, pool, lateSQL, es[4].ID); got != 1 {
				t.Errorf("%d rows in quarantine of the event without a partition, want 1", got)
			}
			if c.name == "detached" {
				exec(t, pool, `drop table events_20200102`)
				checkOutcomes(t, mustWrite(t, w, es), "ddddsd")
			}
		})
	}
}

func TestCopyLine(t *testing.T) {
	for _, c := range []struct {
		where  string
		row    int
		column string
		ok     bool
	}{
		{"COPY events, line 3, column properties", 2, "properties", true},
		{"COPY events, line 3", 2, "", true},
		{"PL/pgSQL function refuse() line 3 at RAISE\nCOPY events, line 10", 9, "", true},
		{"JSON data, line 1: {...\nCOPY events, Zeile 7, Spalte properties", 6, "properties", true},
		{"COPY events, line 11", 0, "", false}, // there are 10 rows
		{"COPY events, line 99999999999999999999999", 0, "", false},
		{"COPY events", 0, "", false},
		{"PL/pgSQL function refuse() line 3 at RAISE", 0, "", false},
		{"", 0, "", false},
	} {
		row, column, ok := copyLine(&pgconn.PgError{Where: c.where}, 10)
		if row != c.row || column != c.column || ok != c.ok {
			t.Errorf("copyLine(%q) = %d, %q, %v; want %d, %q, %v", c.where, row, column, ok, c.row, c.column, c.ok)
		}
	}
	if _, _, ok := copyLine(errors.New("COPY events, line 1"), 10); ok {
		t.Error("copyLine of an error that is not PostgreSQL's gave a row")
	}
}
