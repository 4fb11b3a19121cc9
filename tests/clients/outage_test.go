package clients

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"sluice.example/sluice/internal/pgtest"
)

// away runs the stages on a database that is away until the test calls back.
func away(t *testing.T) (url string, pool *pgxpool.Pool, back func()) {
	t.Helper()
	pool = pgtest.New(t)
	proxy := pgtest.NewProxy(t, pool.Config().ConnString())
	proxy.SetDown(true)
	through, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	return serve(t, through, 0, nil), pool, func() { proxy.SetDown(false) }
}

// awaitRefusal posts until a request is refused at once.
func awaitRefusal(t *testing.T, url string) {
	t.Helper()
	pgtest.Eventually(t, "a request is refused at once", func() bool {
		resp, err := http.Post(url+"/v1/events", "application/json", strings.NewReader(`{"event_name":"probe"}`))
		if err != nil {
			return false
		}
		resp.Body.Close()
		var seconds int
		_, err = fmt.Sscan(resp.Header.Get("Retry-After"), &seconds)
		return err == nil && resp.StatusCode == 503 && seconds >= 5
	})
}

// TestSDKsOutlastAnOutage takes the database away for longer than a request waits. Every event arrives, and once.
func TestSDKsOutlastAnOutage(t *testing.T) {
	t.Parallel()
	for _, sdk := range []struct {
		name, script  string
		count, others int
	}{{"Counted", "segment.mjs", 60, 6}, {"counted", "posthog.mjs", 60, 3}} {
		t.Run(sdk.script, func(t *testing.T) {
			t.Parallel()
			url, pool, back := away(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				awaitRefusal(t, url)
				time.AfterFunc(5*time.Second, back) // longer than a request waits, all in all
			}()
			var got struct{ Delivered, Failed int }
			run(t, sdk.script, url, sdk.count, &got)
			<-done
			if got.Failed != 0 {
				t.Errorf("the SDK gave %d up; want none", got.Failed)
			}
			if _, err := pool.Exec(t.Context(), `delete from events where event_name = 'probe'`); err != nil {
				t.Fatal(err)
			}
			counted(t, pool, sdk.name, sdk.count, sdk.others)
		})
	}
}
