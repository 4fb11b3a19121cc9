package clients

import (
	"testing"
	"time"

	"sluice.example/sluice/pipeline"
)

type posthogResult struct{ Errors int }

func TestPostHog(t *testing.T) {
	t.Parallel()
	url, pool := start(t, 0, nil)
	var got posthogResult
	run(t, "posthog.mjs", url, 300, &got)
	if got.Errors != 0 {
		t.Errorf("the SDK saw %d errors; want none", got.Errors)
	}
	counted(t, pool, "counted", 300, 3)
	for _, tt := range []struct{ sql, want string }{
		{`select string_agg(event_name, ' ' order by event_name collate "C") from events where event_name <> 'counted'`,
			"$create_alias $identify order_paid"},
		{`select concat_ws(' ', user_id, session_id, page_url) from events where event_name = 'order_paid'`,
			"u1 s1 https://shop.example.com/pay"},
		{`select concat_ws(' ', properties->>'cents', properties->>'title', properties->>'$lib') from events
			where event_name = 'order_paid'`, `4900 Ü 😀 "q" \u0000 posthog-node`},
		{`select count(*)::text from events where client_id is null`, "303"}, // its ids are UUIDs
	} {
		if got := query(t, pool, tt.sql); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.sql, got, tt.want)
		}
	}
}

// TestPostHogRepeatsWithoutDoubles loses every third answer after COMMIT.
func TestPostHogRepeatsWithoutDoubles(t *testing.T) {
	t.Parallel()
	url, pool := start(t, 0, nil)
	proxy, cuts := cutting(t, url, func(n int64) bool { return n%3 == 1 })
	var got posthogResult
	run(t, "posthog.mjs", proxy, 200, &got)
	counted(t, pool, "counted", 200, 3)
	if cuts.Load() < 2 {
		t.Errorf("%d answers were cut; want several", cuts.Load())
	}
}

// TestPostHogLosesNothingInAnOverload holds its requests while the buffer is full, and hangs up on them while the
// database is away, for which an answer would cost the batch after three repeats.
func TestPostHogLosesNothingInAnOverload(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"full": &pipeline.Overloaded{RetryAfter: time.Second},
		"database away": pipeline.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, pool := start(t, 9, err)
			var got posthogResult
			run(t, "posthog.mjs", url, 100, &got)
			counted(t, pool, "counted", 100, 3)
		})
	}
}
