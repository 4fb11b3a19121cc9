package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"sluice.example/sluice/internal/pgtest"
)

// tuned reports, in SQL, on how many running nodes a key has a value in force.
func tuned(key, value string) string {
	return `select count(*) from sluice_processes where ended_at is null and seen_at > now() - interval '10 seconds'
		and state -> 'tuning' -> '` + key + `' ->> 'value' = '` + value + `'
		and state -> 'tuning' -> '` + key + `' ->> 'refused' is null`
}

// ok runs a command that has to end well, and returns what it prints.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	status, out, errs := runCommand(t, nil, args...)
	if status != 0 {
		t.Fatalf("%s: status %d\n%s%s", strings.Join(args, " "), status, out, errs)
	}
	return out
}

// A setting is changed on all nodes or one, holds over a restart, and goes back at its end, or when it is unset.
func TestSettingsAreTunedOnTwoNodes(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	startNode(t, url, "--node.name", "a", "--roles", "ingest")
	b := startNode(t, url, "--node.name", "b", "--roles", "ingest,deliver")
	set := func(args ...string) {
		t.Helper()
		ok(t, append([]string{"tune", "set", "--database-url", url}, args...)...)
	}

	set("buffer.max-events", "77", "--why", "a try", "--for", "1h")
	pgtest.Until(t, conn, tuned("buffer.max-events", "77"), int64(2))
	if got := metricsOf(t, b).Sum("sluice_buffer_max_events"); got != 77 {
		t.Errorf("sluice_buffer_max_events is %g; want 77", got)
	}
	set("buffer.max-events", "88", "--why", "another", "--node", "b", "--for", "1h")
	pgtest.Until(t, conn, tuned("buffer.max-events", "88"), int64(1))
	pgtest.Until(t, conn, tuned("buffer.max-events", "77"), int64(1))
	out := ok(t, "tune", "--database-url", url)
	for _, want := range []string{"buffer.max-events = 77 on all nodes", "on node b", "a: in force", ": another"} {
		if !strings.Contains(out, want) {
			t.Errorf("tune prints\n%s\nwant %q in it", out, want)
		}
	}
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	b = startNode(t, url, "--node.name", "b", "--roles", "ingest,deliver")
	if got := metricsOf(t, b).Sum("sluice_buffer_max_events"); got != 88 {
		t.Errorf("after a restart sluice_buffer_max_events is %g; want 88", got)
	}
	ok(t, "tune", "unset", "buffer.max-events", "--node", "b", "--database-url", url)
	pgtest.Eventually(t, "node b has the value of all again", func() bool {
		return metricsOf(t, b).Sum("sluice_buffer_max_events") == 77
	})
	set("buffer.max-events", "99", "--why", "a short try", "--for", "3s")
	pgtest.Until(t, conn, tuned("buffer.max-events", "99"), int64(2))
	pgtest.Eventually(t, "the try ends by itself", func() bool {
		return metricsOf(t, b).Sum("sluice_buffer_max_events") == 2000
	})
	pgtest.Until(t, conn, `select count(*) from sluice_processes where ended_at is null
		and seen_at > now() - interval '10 seconds' and state -> 'tuning' ? 'buffer.max-events'`, int64(0))

	for _, c := range []struct {
		want string
		args []string
	}{
		{"a whole number from 1", []string{"buffer.max-events", "none", "--why", "x"}},
		{`did you mean "buffer.max-events"`, []string{"buffer.max-event", "7", "--why", "x"}},
		{"say why", []string{"buffer.max-events", "7"}},
		{"can't be changed while processes run", []string{"listen", ":80", "--why", "x"}},
	} {
		status, _, errs := runCommand(t, nil, append([]string{"tune", "set", "--database-url", url}, c.args...)...)
		if status == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("tune set %v: status %d, %s; want %s", c.args, status, errs, c.want)
		}
	}
	if got := ok(t, "audit", "--database-url", url, "--action", "set"); strings.Count(got, "set buffer.max-events") != 4 ||
		!strings.Contains(got, "a short try") {
		t.Errorf("the audit has\n%s\nwant three times set and one unset", got)
	}
}

// A destination that is paused gets nothing, also from a node that starts meanwhile; once it is resumed it gets all.
func TestDestinationIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	signed := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		signed <- r.Header.Get("Webhook-Signature") + " " + string(body)
	}))
	defer receiver.Close()
	flags := writeRules(t, receiver.URL, "[50ms]")
	a := startNode(t, url, append(flags, "--node.name", "a")...)
	steer := func(action string, args ...string) string {
		t.Helper()
		return ok(t, append([]string{"destination", action, "sales", "--database-url", url}, args...)...)
	}
	steer("pause", "--why", "their deploy")
	pgtest.Until(t, conn, tuned("destination.sales.paused", "true"), int64(1))
	if got := metricsOf(t, a).Sum("sluice_deliver_paused"); got != 1 {
		t.Errorf("sluice_deliver_paused is %g; want 1", got)
	}
	printed := steer("test")
	b := startNode(t, url, append(flags, "--node.name", "b")...)
	if got := metricsOf(t, b).Sum("sluice_deliver_paused"); got != 1 {
		t.Errorf("sluice_deliver_paused of a node that starts is %g; want 1", got)
	}
	// What is not paused is sent meanwhile.
	ok(t, "destination", "test", "welcome", "--database-url", url)
	pgtest.Until(t, conn, `select status from outbox where destination = 'welcome'`, "sent")
	pgtest.Until(t, conn, `select status, attempts from outbox where destination = 'sales'`, "pending", int32(0))
	<-signed
	steer("resume", "--why", "it is over")
	pgtest.Until(t, conn, `select status from outbox where destination = 'sales'`, "sent")
	if got := <-signed; !strings.HasPrefix(got, "v1,") || !strings.Contains(got, `"test"`) {
		t.Errorf("the receiver got %s; want it signed, and a test", got)
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(printed, "message "), ";")
	_, err := strconv.ParseInt(id, 10, 64)
	if err != nil || !strings.Contains(ok(t, "outbox", "show", id, "--database-url", url), "sent") {
		t.Errorf("destination test printed %q", printed)
	}
	status, _, errs := runCommand(t, nil, "destination", "pause", "sale", "--why", "x", "--database-url", url)
	if status == 0 || !strings.Contains(errs, `did you mean "sales"`) {
		t.Errorf("a pause of a destination that is not there: status %d, %s", status, errs)
	}
}

// A destination whose circuit breaker is open is tried at once when an operator says so.
func TestProbe(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn := connect(t, url)
	var well atomic.Bool
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if !well.Load() {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer receiver.Close()
	startNode(t, url, append(writeRules(t, receiver.URL, "[50ms]"), "--node.name", "a")...)
	ok(t, "destination", "test", "sales", "--database-url", url)
	pgtest.Until(t, conn, `select state -> 'gates' -> 0 ->> 'open' from sluice_processes`, "true")
	well.Store(true)
	ok(t, "destination", "probe", "sales", "--why", "they say it is well", "--database-url", url)
	// The first message waits for as long as the receiver has asked for; the probe is whatever is due.
	ok(t, "destination", "test", "sales", "--database-url", url)
	pgtest.Until(t, conn, `select string_agg(status, ' ' order by message_id) from outbox`, "pending sent")
}
