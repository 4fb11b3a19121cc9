package evaluate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/rules/replay"
)

// TestReplayDecidesAsTheDatabase: the same random stream goes through ingest and sweep, and through a replay in memory;
// the messages, suppressions and re-checks are the same. Tests in rules files and backtests rest on this.
func TestReplayDecidesAsTheDatabase(t *testing.T) {
	t.Parallel()
	text := cart("subject: trigger.user_id", "once_per: episode", "lookback: 4h", "cap: {max: 2, per: 3h}",
		"digest: {after: 2h}") +
		"  - id: ev\n    on: purchase_completed\n    subject: event.user_id\n    dedupe_key: event.properties.k\n    " +
		"dedupe_for: 4h\n" +
		"    cooldown: 20m\n    cap: {max: 3, per: 2h}\n    digest: {after: 30m}\n    send_to: crm\n    payload: {k: " +
		"event.properties.k}\n"
	w := newWorld(t, text)
	w.tick()
	start := w.now
	run := w.replay(text, start)
	rng := rand.New(rand.NewPCG(5, 5))
	for w.now.Before(start.Add(14 * time.Hour)) {
		w.advance(5 * time.Minute)
		// The replay decides at the minute when something is due, the sweep at the next look: all times are multiples
		// of the look, so both see the same. What is due at a look was due before the events that come after it.
		w.tick()
		var batch []pipeline.Event
		for range rng.IntN(6) {
			name := []string{"add_to_cart", "purchase_completed"}[rng.IntN(2)]
			user := rng.IntN(8)
			ev := w.event(name, fmt.Sprint("s", user, rng.IntN(2)), time.Duration(rng.IntN(4))*5*time.Minute)
			ev.UserID = fmt.Sprint("u", user)
			ev.Properties = fmt.Appendf(nil, `{"k":%d,"sku":"s"}`, rng.IntN(200))
			batch = append(batch, ev)
		}
		if len(batch) > 0 {
			w.ingest(batch...)
			slices.SortFunc(batch, func(a, b pipeline.Event) int { return bytes.Compare(a.ID[:], b.ID[:]) })
			run.Feed(batch, w.now)
		} else {
			run.Advance(w.now)
		}
	}
	var want []string
	for _, d := range run.Decided() {
		if d.Suppressed == "" {
			want = append(want, fmt.Sprintf("%s %s %s %s", d.Rule, d.Subject, d.Key, d.At.Format(time.RFC3339)))
		}
	}
	got := w.texts(`select concat_ws(' ', rule_id, subject_key, dedupe_key, to_char((run_after - case when recheck is null
		then interval '0' else interval '5 minutes' end)
		at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) from outbox`)
	slices.Sort(got)
	slices.Sort(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("the database decided\n%s\n\nthe replay\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	digests := slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "digest") })
	if len(got) < 100 || !digests {
		t.Errorf("%d messages, digests among them: %v; the stream tests too little", len(got), digests)
	}
}

func (w *world) replay(text string, start time.Time) *replay.Run {
	w.t.Helper()
	return replay.New(w.load(text), start)
}
