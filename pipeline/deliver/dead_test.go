package deliver

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/pipeline"
)

// TestDeadMessagesAreLogged with what to do, in a line for all that were recorded together.
func TestDeadMessagesAreLogged(t *testing.T) {
	url := receiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(410) })
	q := &fakeQueue{lease: time.Minute}
	q.add("crm", 20)
	var log bytes.Buffer
	d, err := New(DefaultConfig(), destinations(t, hook("crm", url)), q, q.lease, NewMetrics(prometheus.NewRegistry()),
		slog.New(slog.NewJSONHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, d)
	pgtest.Eventually(t, "all dead", func() bool { return q.count(pipeline.Dead) == 20 })
	stop()
	lines := strings.Count(log.String(), `"msg":"deliver: messages were given up"`)
	if lines < 1 || lines > 20 || !strings.Contains(log.String(), `"destination":"crm"`) ||
		!strings.Contains(log.String(), "410") || !strings.Contains(log.String(), "outbox list --status dead") {
		t.Errorf("%d lines about dead messages in\n%s", lines, &log)
	}
}
