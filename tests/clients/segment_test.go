package clients

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/pipeline"
)

type segmentResult struct{ Delivered, Failed int }

func checkSegment(t *testing.T, pool *pgxpool.Pool, got segmentResult, count int) {
	t.Helper()
	if got.Delivered != count+6 || got.Failed != 0 {
		t.Errorf("the SDK took %d for delivered and %d for failed; want %d and none", got.Delivered, got.Failed, count+6)
	}
	counted(t, pool, "Counted", count, 6)
}

func TestSegment(t *testing.T) {
	t.Parallel()
	url, pool := start(t, 0, nil)
	var got segmentResult
	run(t, "segment.mjs", url, 300, &got)
	checkSegment(t, pool, got, 300)
	for _, tt := range []struct{ sql, want string }{
		{`select string_agg(event_name, ' ' order by event_name collate "C") from events where event_name <> 'Counted'`,
			"Order Paid alias group identify page screen"},
		{`select concat_ws(' ', user_id, anonymous_id, page_url, referrer, user_agent) from events
			where event_name = 'Order Paid'`,
			"u1 a1 https://shop.example.com/pay https://example.org/ browser/1"},
		{`select (properties - '$segment')::text from events where event_name = 'Order Paid'`,
			`{"big": "12345678901234567890", "cents": 4900, "title": "Ü 😀 \"q\" \\u0000"}`},
		{`select properties->>'email' from events where event_name = 'identify'`, "a@example.com"},
		{`select properties->>'plan' || ' ' || (properties->'$segment'->>'groupId') from events where event_name = 'group'`,
			"gold g1"},
		{`select properties->'$segment'->>'previousId' from events where event_name = 'alias'`, "a1"},
		{`select concat_ws(' ', page_url, properties->'$segment'->>'name', properties->'$segment'->>'category') from events
			where event_name = 'page'`, "https://shop.example.com/ Home Shop"},
		{`select count(*)::text from events where client_id like 'node-next-%' or client_id like 'counted-%'`, "306"},
		{`select count(distinct occurred_at)::text from events`, "1"},
		{`select properties->'$segment'->'context'->'library'->>'name' from events where event_name = 'screen'`,
			"@segment/analytics-node"},
	} {
		if got := query(t, pool, tt.sql); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.sql, got, tt.want)
		}
	}
}

// TestSegmentRepeatsWithoutDoubles loses every third answer after COMMIT.
func TestSegmentRepeatsWithoutDoubles(t *testing.T) {
	t.Parallel()
	url, pool := start(t, 0, nil)
	proxy, cuts := cutting(t, url, func(n int64) bool { return n%3 == 1 })
	var got segmentResult
	run(t, "segment.mjs", proxy, 150, &got)
	checkSegment(t, pool, got, 150)
	if cuts.Load() < 2 {
		t.Errorf("%d answers were cut; want several", cuts.Load())
	}
}

// TestSegmentWaitsOutAnOverload is refused a few times with 429, and a few times with what is 503 for others.
func TestSegmentWaitsOutAnOverload(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"full": &pipeline.Overloaded{RetryAfter: time.Second},
		"database away": pipeline.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, pool := start(t, 5, err)
			var got segmentResult
			run(t, "segment.mjs", url, 40, &got)
			checkSegment(t, pool, got, 40)
		})
	}
}
