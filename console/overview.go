package console

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/doctor"
)

// capabilities are what a page or a program may ask of this console.
type capabilities struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Who      string `json:"who"`
	Role     string `json:"role"`
	ReadOnly bool   `json:"read_only"`
	Payloads string `json:"payloads"`
}

func (c *Console) capabilities(_ context.Context, r *request) (any, error) {
	return capabilities{c.cfg.Name, c.src.Version, r.who.Name, r.who.Role.String(), c.readOnly() != "",
		c.payloads(r.who.Role)}, nil
}

// overview answers whether all is well, and if not, what to look at first.
type overview struct {
	// NotReady is why this process should get no traffic; empty where it should.
	NotReady string `json:"not_ready,omitempty"`
	// Database is why PostgreSQL does not answer this console; empty where it does.
	Database string `json:"database,omitempty"`
	// Limit says what limits the rate of this process; empty where it takes no events.
	Limit string `json:"limit,omitempty"`
	// Report is what the doctor found, LookedAt when; nil where nothing was found out yet.
	Report   *doctor.Report `json:"report,omitempty"`
	LookedAt time.Time      `json:"looked_at,omitzero"`
	// Rates are of this process.
	Rates []rate `json:"rates,omitempty"`
}

// rate is one number of the process, and how it was in the last 15 minutes.
type rate struct {
	Title string `json:"title"`
	// Now is the mean of the last ten seconds; NaN is written as null.
	Now *float64 `json:"now"`
	// Unit is /s, or ms.
	Unit string `json:"unit,omitempty"`
	// Line are the points of a line in a box of 180 by 40.
	Line string `json:"-"`
	// Most is the highest in the 15 minutes.
	Most float64 `json:"most"`
}

// report is the last one of the doctor. All pages that are open cost what one does.
type report struct {
	mu   sync.Mutex
	last *doctor.Report
	at   time.Time
	err  error
	// tried is when it was last asked for, well or not.
	tried time.Time
}

// reportAge is how old a report may be.
const reportAge = 5 * time.Second

// look returns a report that is at most so old, or the last one and why there is none that is newer.
func (c *Console) look(ctx context.Context) (*doctor.Report, time.Time, error) {
	r := &c.report
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.tried) < reportAge {
		return r.last, r.at, r.err
	}
	var found *doctor.Report
	r.err = c.read(ctx, func(tx pgx.Tx) (err error) {
		found, err = doctor.Look(ctx, tx)
		return err
	})
	r.tried = time.Now()
	if r.err == nil {
		r.last, r.at = found, r.tried
	}
	return r.last, r.at, r.err
}

// known is how old a page is whose numbers are those of the last report.
type known struct {
	LookedAt time.Time `json:"looked_at"`
	// Database is why there is no newer one; empty where PostgreSQL answers.
	Database string `json:"database,omitempty"`
}

// known returns the last report; an error where there is none yet.
func (c *Console) known(ctx context.Context) (*doctor.Report, known, error) {
	report, at, err := c.look(ctx)
	if report == nil {
		return nil, known{}, err
	}
	k := known{LookedAt: at}
	if err != nil {
		k.Database = asProblem(err).Message
	}
	return report, k, nil
}

func (c *Console) overview(ctx context.Context, _ *request) (any, error) {
	o := overview{Limit: c.limit(), Rates: c.rates()}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var looked sync.WaitGroup
	looked.Go(func() {
		var err error
		if o.Report, o.LookedAt, err = c.look(ctx); err != nil {
			o.Database = asProblem(err).Message
		}
	})
	if c.src.Ready != nil {
		if err := c.src.Ready(ctx); err != nil {
			o.NotReady = err.Error()
		}
	}
	looked.Wait()
	return o, nil
}

// limits are the values of sluice_buffer_limited_by.
var limits = map[string]string{
	"commit":  "COMMIT limits the rate of this process: its writers wait for PostgreSQL's disk.",
	"cpu":     "The processors limit the rate of this process: its own, or PostgreSQL's.",
	"clients": "Nothing limits the rate of this process: it takes all that clients send.",
	"outage":  "No batch of this process is written: PostgreSQL is away, or takes nothing.",
}

// limit is the sentence on what limits the rate.
func (c *Console) limit() string {
	if c.src.Metrics == nil {
		return ""
	}
	families, _ := c.src.Metrics.Gather() // what could not be read is left out
	for _, f := range families {
		if f.GetName() != "sluice_buffer_limited_by" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetGauge().GetValue() == 1 {
				return limits[m.GetLabel()[0].GetValue()]
			}
		}
	}
	return ""
}

// rates are the numbers of the overview.
func (c *Console) rates() (all []rate) {
	if c.src.History == nil {
		return nil
	}
	for _, s := range []struct {
		title, name string
		labels      map[string]string
		unit        string
		scale       float64
	}{
		{"received", "sluice_ingest_received_events_total", nil, "/s", 1},
		{"stored", "sluice_copyin_stored_events_total", nil, "/s", 1},
		{"duplicate", "sluice_copyin_duplicate_events_total", nil, "/s", 1},
		{"rejected", "sluice_ingest_rejected_events_total", nil, "/s", 1},
		{"refused", "sluice_ingest_refused_events_total", nil, "/s", 1},
		{"buffer wait, p99", "sluice_buffer_wait_seconds:p99", nil, "ms", 1000},
		{"sent", "sluice_deliver_attempts_total", map[string]string{"result": "sent"}, "/s", 1},
		{"failed attempts", "sluice_deliver_attempts_total", map[string]string{"result": "failed"}, "/s", 1},
		{"due", "sluice_claim_due_messages", nil, "", 1},
	} {
		_, values := c.src.History.Series(s.name, s.labels)
		if !anyKnown(values) {
			continue // of a role that this process does not have, or of what never happened
		}
		for i := range values {
			values[i] *= s.scale
		}
		r := rate{Title: s.title, Unit: s.unit}
		if now := mean(values[max(0, len(values)-10):]); !math.IsNaN(now) {
			r.Now = &now
		}
		r.Line, r.Most = line(values)
		all = append(all, r)
	}
	return all
}

func anyKnown(values []float64) bool {
	return slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) })
}

// mean leaves out what is not known.
func mean(values []float64) float64 {
	sum, n := 0.0, 0.0
	for _, v := range values {
		if !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / n
}

// line draws values into a box of 180 by 40, a point for every ten seconds, the newest at the right edge.
func line(values []float64) (points string, most float64) {
	const width, height, each, slots = 180, 38, 10, 90
	var means []float64
	for end := len(values); end > 0 && len(means) < slots; end -= each {
		v := mean(values[max(0, end-each):end])
		if means = append(means, v); !math.IsNaN(v) {
			most = max(most, v)
		}
	}
	var b strings.Builder
	for i := len(means) - 1; i >= 0; i-- {
		if math.IsNaN(means[i]) {
			continue
		}
		y := 1.0 + height
		if most > 0 {
			y -= means[i] / most * height
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(width-i*width/slots) + "," + strconv.FormatFloat(y, 'f', 1, 64))
	}
	return b.String(), most
}
