package deliver

import (
	"context"
	"net/http"
	"testing"
	"time"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// stuckQueue is a queue whose claims for one destination end only when release is closed.
type stuckQueue struct {
	*fakeQueue
	stuck   string
	release chan struct{}
}

func (q stuckQueue) Claim(ctx context.Context, wants []pipeline.Want) ([]pipeline.Lease, error) {
	for _, w := range wants {
		if w.Destination == q.stuck {
			<-q.release
		}
	}
	return q.fakeQueue.Claim(ctx, wants)
}

// A claim that takes long, for a destination that keeps its order, holds up no other destination.
func TestSlowClaimHoldsUpNobody(t *testing.T) {
	q := stuckQueue{&fakeQueue{lease: time.Minute}, "slow", make(chan struct{})}
	url := receiver(t, func(http.ResponseWriter, *http.Request) {})
	ordered := "order: {by: subject_key, dead: skip}"
	ds := destinations(t, hook("slow", url, ordered), hook("free", url), hook("other", url, ordered))
	for _, name := range []string{"slow", "free", "other"} {
		q.add(name, 5)
	}
	cfg := DefaultConfig()
	cfg.PollInterval = 10 * time.Millisecond
	d, err := New(cfg, ds, q, q.lease, testMetrics(), discard)
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, d)
	sent := func(n int) {
		t.Helper()
		pgtest.Eventually(t, "messages are sent", func() bool { return q.count(pipeline.Sent) == n },
			func() any { return q.recorded() })
	}
	sent(10)
	q.add("free", 5)
	q.add("other", 5)
	sent(20)
	close(q.release)
	sent(25)
	stop()
}
