package clients

import (
	"fmt"
	"testing"
	"time"
)

type pageResult struct{ Failed, Offsets int }

// TestPostHogJSOfAWrongClock: whatever the clock of a device shows, an event of its page is stored once, at the time
// when it happened, although the first answer is lost and the repeat comes later. Only a time that can be stored is
// taken as it was sent.
func TestPostHogJSOfAWrongClock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		library string
		fast    time.Duration
		asSent  bool
		offsets int
	}{
		{"posthog-js-1.240", 0, false, 20},
		{"posthog-js-1.240", 72 * time.Hour, false, 20},
		{"posthog-js-1.240", time.Hour, false, 20},
		{"posthog-js-1.240", -2 * 365 * 24 * time.Hour, false, 20},
		{"posthog-js", 0, true, 0},
		{"posthog-js", 72 * time.Hour, false, 0},
		{"posthog-js", time.Hour, true, 0},
		{"posthog-js", -2 * 365 * 24 * time.Hour, false, 0},
	} {
		t.Run(fmt.Sprintf("%s/%s", tt.library, tt.fast), func(t *testing.T) {
			t.Parallel()
			url, pool := start(t, 0, nil)
			proxy, cuts := cutting(t, url, func(n int64) bool { return n == 1 })
			from := time.Now().Add(-time.Second)
			var got pageResult
			run(t, "posthog-js.mjs", proxy, 20, &got, "LIBRARY="+tt.library, "TRACER=1",
				fmt.Sprintf("SHIFT=%d", tt.fast.Milliseconds()))
			to := time.Now()
			if got.Failed != 1 || cuts.Load() != 1 || got.Offsets != tt.offsets {
				t.Errorf("%+v, %d answers cut; want one failed, and %d offsets", got, cuts.Load(), tt.offsets)
			}
			counted(t, pool, "counted", 20, 0)
			if tt.asSent {
				from, to = from.Add(tt.fast), to.Add(tt.fast)
			}
			if wrong := query(t, pool, fmt.Sprintf(`select count(*)::text from events
				where not occurred_at between to_timestamp(%d) and to_timestamp(%d)`, from.Unix(), to.Unix()+1)); wrong != "0" {
				t.Errorf("%s events are not stored at the time when they happened", wrong)
			}
		})
	}
}

// TestSegmentInAPage takes the paths, the preflights and the bodies of Segment's library for browsers.
func TestSegmentInAPage(t *testing.T) {
	t.Parallel()
	url, pool := start(t, 0, nil)
	var got pageResult
	run(t, "segment-browser.mjs", url, 10, &got, "TRACER=1")
	if got.Failed != 0 {
		t.Errorf("%d requests failed; want none", got.Failed)
	}
	counted(t, pool, "counted", 10, 5)
	const want = "alias group identify page screen"
	if names := query(t, pool, `select string_agg(event_name, ' ' order by event_name) from events
		where event_name <> 'counted'`); names != want {
		t.Errorf("stored %q; want %q", names, want)
	}
	const pageSQL = `select page_url from events where event_name = 'page'`
	if page := query(t, pool, pageSQL); page != "https://shop.example.com/pay" {
		t.Errorf("page_url %q; want that of the page", page)
	}
}
