package dbclock

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/internal/pgtest"
)

// TestDatabaseClockIsWatched sets the clock that a session of PostgreSQL sees.
func TestDatabaseClockIsWatched(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = "clock, pg_catalog"
	db, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	set := func(ahead time.Duration) {
		t.Helper()
		const sql = `create schema if not exists clock; create or replace function clock.clock_timestamp() returns timestamptz
			language sql as $$ select pg_catalog.clock_timestamp() + interval '%d seconds' $$`
		if _, err := db.Exec(t.Context(), fmt.Sprintf(sql, int(ahead.Seconds()))); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	w := New(db, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	for _, c := range []struct {
		ahead time.Duration
		steps float64
		lines []string
	}{
		{0, 0, nil},
		{0, 0, nil},
		{time.Hour, 1, []string{"clock=database by=1h0m0", "database_ahead_by=1h0m0"}},
		{time.Hour, 1, nil},
		{0, 2, []string{"clock=database by=-1h0m0", "agree again"}},
		{-48 * time.Hour, 3, []string{"clock=database by=-48h0m0", "database_ahead_by=-48h0m0"}},
	} {
		set(c.ahead)
		log.Reset()
		before := w.last
		pgtest.Eventually(t, "a look that is quick enough", func() bool {
			w.look(t.Context())
			return w.last != before
		})
		if got := testutil.ToFloat64(w.difference); got < c.ahead.Seconds()-1 || got > c.ahead.Seconds()+1 {
			t.Errorf("with the clock %s ahead the difference is %g", c.ahead, got)
		}
		if got := testutil.ToFloat64(w.steps.WithLabelValues("database")); got != c.steps {
			t.Errorf("%g steps, want %g", got, c.steps)
		}
		text := log.String()
		if strings.Count(text, "\n") != len(c.lines) {
			t.Errorf("with the clock %s ahead the log has %q, want lines with %q", c.ahead, text, c.lines)
		}
		for _, line := range c.lines {
			if !strings.Contains(text, line) {
				t.Errorf("with the clock %s ahead the log lacks %q: %s", c.ahead, line, text)
			}
		}
	}
}

// TestProgramClockIsWatched: time that passes is no step, and a jump is one.
func TestProgramClockIsWatched(t *testing.T) {
	t.Parallel()
	w := New(nil, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	now := time.Now()
	database := now.Round(0)
	w.compare(t.Context(), sample{database, now})
	w.compare(t.Context(), sample{database.Add(5 * time.Second), now.Add(5 * time.Second)})
	if got := testutil.ToFloat64(w.steps.WithLabelValues("program")); got != 0 {
		t.Errorf("%g steps of a clock that nobody set", got)
	}
	w.stepped(t.Context(), "program", -time.Hour)
	if got := testutil.ToFloat64(w.steps.WithLabelValues("program")); got != 1 {
		t.Errorf("%g steps of a clock that was set, want 1", got)
	}
}
