package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// samples are the values of a /metrics page, by name and then by labels as they stand there.
type samples map[string]map[string]float64

func scrape(ctx context.Context, admin string) (samples, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/metrics: %s", admin, res.Status)
	}
	return parseSamples(res.Body)
}

// parseSamples reads the text format as our own program writes it: no time stamps, no quotes inside labels.
func parseSamples(r io.Reader) (samples, error) {
	s := samples{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if line == "" || line[0] == '#' || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		if s[name] == nil {
			s[name] = map[string]float64{}
		}
		s[name][strings.TrimSuffix(labels, "}")] = value
	}
	return s, lines.Err()
}

// sum adds the samples of a name that have the label; an empty label means all of them.
func (s samples) sum(name, label string) float64 {
	total := 0.0
	for labels, v := range s[name] {
		if label == "" || slices.Contains(strings.Split(labels, ","), label) {
			total += v
		}
	}
	return total
}

// tenantBooks is promise 11 for one tenant, as one process counted since its start.
type tenantBooks struct {
	received, rejected, refused, inFlight, failed, stored, duplicate, quarantined float64
}

func booksOf(s samples, tenant string) tenantBooks {
	label := fmt.Sprintf("tenant=%q", tenant)
	return tenantBooks{
		received:    s.sum("pipeline_ingest_received_events_total", label),
		rejected:    s.sum("pipeline_ingest_rejected_events_total", label),
		refused:     s.sum("pipeline_ingest_refused_events_total", label),
		inFlight:    s.sum("pipeline_buffer_in_flight_events", label),
		failed:      s.sum("pipeline_buffer_failed_events_total", label),
		stored:      s.sum("pipeline_copyin_stored_events_total", label),
		duplicate:   s.sum("pipeline_copyin_duplicate_events_total", label),
		quarantined: s.sum("pipeline_copyin_quarantined_events_total", label),
	}
}

// difference is what nobody can account for: zero, or a bug.
func (b tenantBooks) difference() float64 {
	return b.received - b.rejected - b.refused - b.inFlight - b.failed - b.stored - b.duplicate - b.quarantined
}

// outboxBooks counts what the rules decided, by where it stands: due now, to be tried again, not yet to be tried (in a
// rule's grace), leased, or in a final state.
type outboxBooks struct{ due, retry, later, leased, sent, skipped, dead int64 }

func (b outboxBooks) total() int64 {
	return b.due + b.retry + b.later + b.leased + b.sent + b.skipped + b.dead
}

// open counts what is being delivered.
func (b outboxBooks) open() int64 { return b.due + b.retry + b.leased }

// outboxBooksSQL reads the whole table: for trials and tests.
const outboxBooksSQL = `
select
    count(*) filter (where status in ('pending', 'failed') and coalesce(locked_until <= now(), true) and run_after <= now()),
    count(*) filter (where status = 'failed' and coalesce(locked_until <= now(), true) and run_after > now()),
    count(*) filter (where status = 'pending' and coalesce(locked_until <= now(), true) and run_after > now()),
    count(*) filter (where status in ('pending', 'failed') and locked_until > now()),
    count(*) filter (where status = 'sent'),
    count(*) filter (where status = 'skipped'),
    count(*) filter (where status = 'dead'),
    (select count(*) from events)
from outbox
where rule_id is not null`

func readOutboxBooks(ctx context.Context, conn *pgx.Conn) (b outboxBooks, events int64, err error) {
	err = conn.QueryRow(ctx, outboxBooksSQL).Scan(&b.due, &b.retry, &b.later, &b.leased, &b.sent, &b.skipped, &b.dead, &events)
	return b, events, err
}
