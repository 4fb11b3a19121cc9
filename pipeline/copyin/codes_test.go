package copyin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgsession"
	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// raiseSQL has one event raise a code, when it is inserted or at COMMIT.
const raiseSQL = `
create function refuse() returns trigger language plpgsql as $$
begin
    if new.event_name = 'bad' then raise exception 'not this one' using errcode = '%s'; end if;
    return new;
end $$;
create %s on events %s for each row execute function refuse()`

// asTheProgram returns a pool whose sessions end with some errors, as the program's do.
func asTheProgram(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	pgsession.ConfigurePool(cfg)
	program, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(program.Close)
	return program
}

// Whatever code one event raises: it goes to quarantine with its code, and its neighbours are stored.
func TestOneRowThatRaisesAnyCode(t *testing.T) {
	t.Parallel()
	for _, code := range []string{
		"45000", "20000", "21000", "XX000", "42501", "0A000", "38000", "39000", "55000", "HV000", "SL001", "42P01", "25001",
		"53200", "58030", "08006", "40001", "40P01", "57014", "55P03",
	} {
		for when, parts := range map[string][2]string{
			"inserted":  {"trigger refuse before insert", ""},
			"at COMMIT": {"constraint trigger refuse after insert", "deferrable initially deferred"},
		} {
			t.Run(code+" "+when, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.New(t)
				w := newWriter(t, asTheProgram(t, pool))
				exec(t, pool, fmt.Sprintf(raiseSQL, code, parts[0], parts[1]))
				checkOutcomes(t, mustWrite(t, w, withBad(9, 6)), "ssssssrss")
				checkRows(t, pool, 8)
				alone := withBad(1, 0)
				checkOutcomes(t, mustWrite(t, w, alone), "r")
				var reason string
				const whySQL = `select sqlstate || ' ' || reason from quarantine where event_id = $1`
				if reason = scan[string](t, pool, whySQL, alone[0].ID); !strings.HasPrefix(reason, code+" ") ||
					!strings.Contains(reason, "not this one") {
					t.Errorf("in quarantine: %s; want its code", reason)
				}
				if n := scan[int](t, pool, `select count(*) from quarantine`); n != 2 {
					t.Errorf("%d rows in quarantine, want 2", n)
				}
				checkOutcomes(t, mustWrite(t, w, events(2)), "ss")
			})
		}
	}
}

// A code that every row raises, since a privilege is missing behind a trigger, is a fault: nothing goes to quarantine.
func TestCodeThatEveryRowRaisesIsAFault(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"42501", "55000", "XX000"} {
		pool := pgtest.New(t)
		w := newWriter(t, asTheProgram(t, pool))
		for _, before := range []string{"nothing was stored", "rows were stored"} {
			if before == "rows were stored" {
				exec(t, pool, `drop trigger refuse on events; drop function refuse`)
				checkOutcomes(t, mustWrite(t, w, events(3)), "sss")
			}
			ddl := fmt.Sprintf(raiseSQL, code, "trigger refuse before insert", "")
			exec(t, pool, strings.ReplaceAll(ddl, "= 'bad'", "<> ''"))
			for _, n := range []int{1, 5, 100} {
				if _, err := w.Write(t.Context(), events(n)); !errors.Is(err, pipeline.ErrFault) {
					t.Errorf("%s, %s: Write of %d = %v, want ErrFault", code, before, n, err)
				}
			}
		}
		if n := scan[int](t, pool, `select count(*) from quarantine`); n != 0 {
			t.Errorf("%s: %d rows in quarantine, want none", code, n)
		}
	}
}
