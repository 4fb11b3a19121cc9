package evaluate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/pipeline"
)

// The oracles: sweeps over the stored events, grouped by key, that need no memory but what has fired. The cutoff
// applies to the anchor of the key, not to single events; a tie cancels. $1 is now, $2 within, $3 lookback.
var oracles = map[string]string{
	"last": `
		select session_id, a, a from (
			select session_id, max(ts) filter (where event_name = 'add_to_cart') a,
				max(ts) filter (where event_name = 'purchase_completed') b
			from (select *, least(occurred_at, received_at) ts from events) e
			where event_name in ('add_to_cart', 'purchase_completed') and ts > $1 - $3::interval
			group by session_id) k
		where a <= $1 - $2::interval and coalesce(b, '-infinity') < a`,
	"idle": `
		select session_id, c, a from (
			select session_id, max(ts) c, max(ts) filter (where event_name = 'add_to_cart') a,
				max(ts) filter (where event_name = 'purchase_completed') b
			from (select *, least(occurred_at, received_at) ts from events) e group by session_id) k
		where c <= $1 - $2::interval and c > $1 - $3::interval and coalesce(b, '-infinity') < a`,
	"first": `
		select session_id, f, coalesce(b, '2000-01-01') from (
			select e.session_id, b, min(ts) filter (where event_name = 'add_to_cart' and ts > coalesce(b, '-infinity')) f
			from (select *, least(occurred_at, received_at) ts from events) e
			join (select session_id, max(least(occurred_at, received_at)) filter (where event_name = 'purchase_completed') b
				from events group by session_id) m using (session_id)
			group by 1, 2) k
		where f <= $1 - $2::interval and f > $1 - $3::interval`,
}

var seeds = flag.Int("seeds", 2, "random streams for each anchor")

// TestTimersDecideAsTheOracle: random streams of late (up to 3 hours), future-stamped, repeated and out-of-order
// events, with restarts between; at every tick the timers fire for the same keys and anchors as a sweep over the stored
// events.
func TestTimersDecideAsTheOracle(t *testing.T) {
	t.Parallel()
	for _, anchor := range []string{"last", "first", "idle"} {
		for seed := range uint64(*seeds) {
			t.Run(fmt.Sprintf("%s/seed=%d", anchor, seed), func(t *testing.T) {
				t.Parallel()
				fired := followStream(t, anchor, seed)
				if fired < 30 {
					t.Errorf("only %d firings; the stream tests too little", fired)
				}
			})
		}
	}
}

func followStream(t *testing.T, anchor string, seed uint64) (fired int) {
	const within, lookback = time.Hour, 4 * time.Hour
	text := cart("once_per: episode", "lookback: 4h", "anchor: "+anchor)
	w := newWorld(t, text)
	w.tick()
	rng := rand.New(rand.NewPCG(seed, 7))
	start := w.now
	done := map[string]time.Time{}
	var recent []pipeline.Event
	for w.now.Before(start.Add(16 * time.Hour)) {
		w.advance(5 * time.Minute)
		var batch []pipeline.Event
		for range rng.IntN(8) {
			name := []string{"add_to_cart", "add_to_cart", "purchase_completed", "page_viewed"}[rng.IntN(4)]
			ago := time.Duration(rng.IntN(4)) * time.Minute
			switch rng.IntN(6) {
			case 0:
				ago = time.Duration(rng.IntN(180)) * time.Minute
			case 1:
				ago = -time.Duration(rng.IntN(180)) * time.Minute
			}
			ev := w.event(name, fmt.Sprint("s", rng.IntN(60)), ago)
			batch = append(batch, ev)
			recent = append(recent, ev)
		}
		for range rng.IntN(3) { // repeats, of this batch and of earlier ones
			if len(recent) > 0 {
				batch = append(batch, recent[rng.IntN(len(recent))])
			}
		}
		rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		if len(batch) > 0 {
			w.ingest(batch...)
		}
		if rng.IntN(20) == 0 {
			w.restart(text)
		}
		before := len(w.texts(`select '' from outbox`))
		w.tick()
		got := w.texts(`select dedupe_key from outbox order by message_id offset $1`, before)
		want := askOracle(t, w, anchor, within, lookback, done)
		slices.Sort(got)
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("at %s the timers fired for\n%v, the oracle for\n%v\ntimers:\n%v", w.now.Sub(start), got, want,
				strings.Join(w.texts(`select row_to_json(t)::text from absence_timers t where key = any($1)`, keysOf(got, want)),
					"\n"))
		}
		fired += len(got)
	}
	return fired
}

// keysOf are the keys of key@anchor texts.
func keysOf(lists ...[]string) (keys []string) {
	for _, s := range slices.Concat(lists...) {
		key, _, _ := strings.Cut(s, "@")
		keys = append(keys, key)
	}
	return keys
}

// askOracle gives key@anchor of what fires now, and remembers it in done.
func askOracle(t *testing.T, w *world, anchor string, within, lookback time.Duration,
	done map[string]time.Time) (want []string) {
	t.Helper()
	rows, err := w.db.Query(t.Context(), strings.ReplaceAll(oracles[anchor], "$1", "$1::timestamptz"), w.now, within,
		lookback)
	if err != nil {
		t.Fatal(err)
	}
	var key string
	var at time.Time
	var since time.Time // the latest trigger; for first, the latest cancel
	_, err = pgx.ForEachRow(rows, []any{&key, &at, &since}, func() error {
		// last and idle: each trigger is told once. first: after it was told, a cancel has to come.
		if last, ok := done[key]; !ok || since.After(last) {
			// A late trigger before an idle moment that was told already is no other episode.
			if action := fmt.Sprintf("%s@%d", key, at.UnixMicro()); done[action].IsZero() {
				want = append(want, action)
				done[action] = at
			}
			if done[key] = since; anchor == "first" {
				done[key] = at
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	return want
}
