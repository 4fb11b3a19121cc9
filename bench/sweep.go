package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/pipeline/buffer"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/deliver"
)

// Sweep is one path measured over a range of settings. It is also the file that a run goes on from.
type Sweep struct {
	Kind    string  `json:"kind"` // ingest or deliver
	Machine Machine `json:"machine"`
	Base    Base    `json:"base"`
	Points  []Point `json:"points"`
	Knee    *Knee   `json:"knee,omitempty"`
}

// Base is what all points have in common; points of another base are not comparable, so a file is not gone on with.
type Base struct {
	Shape           Shape         `json:"shape"`
	Connections     int           `json:"connections"`
	Rules           int           `json:"rules"`
	ReceiverLatency time.Duration `json:"receiver_latency_ns"`
	Messages        int           `json:"messages"` // most for each point of a deliver sweep
	Duration        time.Duration `json:"duration_ns"`
	Rounds          int           `json:"rounds"`
	Rate            float64       `json:"rate"` // of the latency run; 0: half of what the point reached
	BoundMS         float64       `json:"bound_ms"`
}

// Point is what one combination of settings reached.
type Point struct {
	Settings map[string]string `json:"settings"`
	Rate     Spread            `json:"rate"`
	// Latency is of an open loop at LatencyRate (ingest), or of every message from due to recorded (absent).
	Latency      *Latency           `json:"latency,omitempty"`
	LatencyRate  float64            `json:"latency_rate,omitempty"`
	CPU          CPU                `json:"cpu"`
	WALBytes     float64            `json:"wal_bytes_per_unit"`
	DiskBytes    float64            `json:"disk_bytes_per_unit"`
	MessageBytes float64            `json:"disk_bytes_per_message,omitempty"`
	MemoryBytes  int64              `json:"program_memory_bytes"`
	Stages       map[string]float64 `json:"stages,omitempty"`
	Books        Books              `json:"books"`
}

// Knee is the point to choose, and why.
type Knee struct {
	Settings map[string]string `json:"settings"`
	Rate     float64           `json:"rate"`
	Why      string            `json:"why"`
}

// axes of each kind, in the order in which less of them is better, and the flags that they set. max-wait and lease are
// durations, the others counts.
var axes = map[string][]axis{
	"ingest":  {{"writers", "--buffer.writers"}, {"batch", "--buffer.max-events"}, {"max-wait", "--buffer.max-wait"}},
	"deliver": {{"concurrency", ""}, {"batch", "--deliver.claim-batch"}, {"lease", "--claim.lease"}},
}

type axis struct{ name, flag string }

// sweepDefaults are the program's own settings, for axes that a sweep leaves out.
var sweepDefaults = map[string]map[string]string{
	"ingest": {
		"writers":  strconv.Itoa(buffer.DefaultConfig().Writers),
		"batch":    strconv.Itoa(buffer.DefaultConfig().MaxEvents),
		"max-wait": waitText(buffer.DefaultConfig().MaxWait),
	},
	"deliver": {
		"concurrency": strconv.Itoa(deliver.DefaultConcurrency),
		"batch":       strconv.Itoa(deliver.DefaultConfig().ClaimBatch),
		"lease":       duration.Format(claim.DefaultConfig().Lease),
	},
}

func waitText(d time.Duration) string {
	if d == buffer.Auto {
		return "auto"
	}
	return duration.Format(d)
}

// ParseSweep reads batch=500,2000,writers=1,2: a name with = begins the values of an axis, which go on to the next
// name. It returns every combination, with the program's defaults for axes that are not named.
func ParseSweep(kind, text string) ([]map[string]string, error) {
	values := map[string][]string{}
	var name string
	for _, item := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		if n, v, ok := strings.Cut(item, "="); ok {
			name, item = strings.TrimSpace(n), v
			if values[name] != nil {
				return nil, fmt.Errorf("%s is given twice", name)
			}
			if _, known := sweepDefaults[kind][name]; !known {
				return nil, fmt.Errorf("unknown axis %q; %s has %s", name, kind, strings.Join(axisNames(kind), ", "))
			}
		}
		if name == "" {
			return nil, fmt.Errorf("%q: begin with an axis, as in batch=500,2000", item)
		}
		item = strings.TrimSpace(item)
		if _, err := axisValue(name, item); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		values[name] = append(values[name], item)
	}
	points := []map[string]string{{}}
	for _, a := range axes[kind] {
		if values[a.name] == nil {
			values[a.name] = []string{sweepDefaults[kind][a.name]}
		}
		var more []map[string]string
		for _, p := range points {
			for _, v := range values[a.name] {
				q := maps.Clone(p)
				q[a.name] = v
				more = append(more, q)
			}
		}
		points = more
	}
	return points, nil
}

func axisNames(kind string) (names []string) {
	for _, a := range axes[kind] {
		names = append(names, a.name)
	}
	return names
}

// axisValue orders the values of an axis.
func axisValue(name, text string) (float64, error) {
	if text == "auto" && name == "max-wait" {
		return 0, nil // the least to set
	}
	if name == "max-wait" || name == "lease" {
		d, err := duration.Parse(text)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q is not a duration such as 5ms", text)
		}
		return d.Seconds(), nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a count of at least 1", text)
	}
	return float64(n), nil
}

// label prints settings in the order of the axes.
func (s *Sweep) label(settings map[string]string) string { return Label(s.Kind, settings) }

// Label prints settings in the order of the axes: writers=2 batch=2000 max-wait=5ms.
func Label(kind string, settings map[string]string) string {
	var parts []string
	for _, a := range axes[kind] {
		parts = append(parts, a.name+"="+settings[a.name])
	}
	return strings.Join(parts, " ")
}

// near is how close to the best rate counts as equal: within what repeated runs differ by on a quiet machine (a guess).
const near = 0.05

// findKnee chooses the smallest setting that is as good as the best: of the points whose p99 stays within the bound and
// whose books balance, those within 5 % of the best rate, and of these the one with the fewest writers (or the least
// concurrency), then the smallest batch, then the shortest max-wait (or lease).
func (s *Sweep) findKnee() { _, s.Knee = s.Choose(s.Base.BoundMS) }

// Choose finds the knee for a bound on p99 in ms, 0 for none. It returns nil where no point is of use.
func (s *Sweep) Choose(boundMS float64) (*Point, *Knee) {
	small := "fewest writers, then smallest batch, then shortest max-wait"
	if s.Kind == "deliver" {
		small = "least concurrency, then smallest batch, then shortest lease"
	}
	var fit []Point
	for _, p := range s.Points {
		if p.Books.Err() == nil && (p.Latency == nil || boundMS == 0 || p.Latency.P99 <= boundMS) {
			fit = append(fit, p)
		}
	}
	why := ""
	if len(fit) == 0 { // none keeps the bound: the fastest is still worth knowing
		for _, p := range s.Points {
			if p.Books.Err() == nil {
				fit = append(fit, p)
			}
		}
		why = fmt.Sprintf("no setting kept p99 within %g ms, so latency was not looked at; ", boundMS)
	} else if boundMS > 0 && s.Kind == "ingest" {
		small += fmt.Sprintf("; settings with a p99 over %g ms do not count", boundMS)
	}
	if len(fit) == 0 {
		return nil, nil
	}
	best := 0.0
	for _, p := range fit {
		best = max(best, p.Rate.Median)
	}
	fit = slices.DeleteFunc(fit, func(p Point) bool { return p.Rate.Median < (1-near)*best })
	slices.SortStableFunc(fit, func(a, b Point) int {
		for _, x := range axes[s.Kind] {
			u, _ := axisValue(x.name, a.Settings[x.name]) // parsed before
			v, _ := axisValue(x.name, b.Settings[x.name])
			if u != v {
				return int(math.Copysign(1, u-v))
			}
		}
		return 0
	})
	return &fit[0], &Knee{Settings: fit[0].Settings, Rate: fit[0].Rate.Median,
		Why: fmt.Sprintf("%sthe smallest setting within %.0f %% of the best rate, %s a second (%s)%s", why, 100*near,
			thousands(best), small, s.edge(fit[0].Settings))}
}

// edge names the axes on which the knee has the largest value that was tried: there may be more beyond.
func (s *Sweep) edge(knee map[string]string) string {
	var at []string
	for _, x := range axes[s.Kind] {
		own, _ := axisValue(x.name, knee[x.name]) // parsed before
		smaller, larger := false, false
		for _, p := range s.Points {
			v, _ := axisValue(x.name, p.Settings[x.name])
			smaller, larger = smaller || v < own, larger || v > own
		}
		if smaller && !larger {
			at = append(at, x.name)
		}
	}
	if len(at) == 0 {
		return ""
	}
	return "; it lies at the end of what was tried of " + strings.Join(at, " and ") + ": sweep further"
}

// ReadSweep reads a file that WriteJSON wrote.
func ReadSweep(file string) (*Sweep, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &Sweep{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s is not a sweep: %w", file, err)
	}
	if axes[s.Kind] == nil {
		return nil, fmt.Errorf("%s is not a sweep: its kind is %q", file, s.Kind)
	}
	return s, nil
}

// RunSweep measures the points that file does not hold yet, and writes it after each. Without a file it keeps nothing.
func RunSweep(ctx context.Context, o Options, kind string, base Base, points []map[string]string,
	file string) (_ *Sweep, err error) {
	s := &Sweep{Kind: kind, Base: base}
	if file != "" {
		if old, err := ReadSweep(file); err == nil {
			if old.Base != base || old.Kind != kind {
				return nil, fmt.Errorf("%s holds a sweep with other conditions: name another file, or remove it", file)
			}
			s = old
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	var open []map[string]string
	for _, p := range points {
		if !slices.ContainsFunc(s.Points, func(done Point) bool { return maps.Equal(done.Settings, p) }) {
			open = append(open, p)
		}
	}
	if len(open) > 0 {
		l, err := openLab(ctx, o, len(points))
		if err != nil {
			return nil, err
		}
		l.step = len(points) - len(open)
		defer func() { err = errors.Join(err, l.close()) }()
		if s.Machine, err = describe(ctx, l.db); err != nil {
			return nil, err
		}
		run := map[string]func(context.Context, Base, map[string]string) (Point, error){"ingest": l.ingestPoint,
			"deliver": l.deliverPoint}[kind]
		for _, p := range open {
			l.next("%s", s.label(p))
			point, err := run(ctx, base, p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.label(p), err)
			}
			s.Points = append(s.Points, point)
			s.findKnee()
			if file != "" {
				if err := WriteJSON(file, s); err != nil {
					return nil, err
				}
			}
		}
	}
	s.findKnee()
	return s, nil
}

// ingestPoint measures the highest rate with these settings, and latency in an open loop at half of it.
func (l *lab) ingestPoint(ctx context.Context, base Base, settings map[string]string) (p Point, err error) {
	events, err := NewEvents(base.Shape)
	if err != nil {
		return p, err
	}
	args := []string{"--roles", "ingest"}
	if base.Rules > 0 {
		rules, err := files(l.dir, "http://127.0.0.1:9", 8)
		if err != nil {
			return p, err
		}
		args = append(args, rules...)
	}
	for _, a := range axes["ingest"] {
		args = append(args, a.flag, settings[a.name])
	}
	s, err := l.startSide(ctx, events, base.Connections, args...)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := l.warm(ctx, s); err != nil {
		return p, err
	}
	for range base.Rounds {
		if _, err := s.round(ctx, l.db, func(w *load) (*tally, error) {
			w.url += "/v1/events"
			return w.max(ctx, base.Duration)
		}); err != nil {
			return p, err
		}
	}
	r := s.result("", "", nil)
	p = Point{Settings: settings, Rate: r.Rate, CPU: r.CPU, Stages: r.Stages, WALBytes: spread(s.wal).Median,
		DiskBytes:    spread(s.disk).Median,
		MessageBytes: spread(s.outbox).Median, MemoryBytes: s.memory, LatencyRate: base.Rate}
	if p.LatencyRate == 0 {
		p.LatencyRate = r.Rate.Median / 2
	}
	s.conns = max(256, base.Connections)
	t, err := s.round(ctx, l.db, func(w *load) (*tally, error) {
		w.url += "/v1/events"
		return w.paced(ctx, p.LatencyRate, base.Duration)
	})
	if err != nil {
		return p, err
	}
	p.Latency, p.Books = t.answers.summary(), s.books
	return p, nil
}

// deliverPoint measures due rows until they are sent and recorded, against a receiver of the given latency.
func (l *lab) deliverPoint(ctx context.Context, base Base, settings map[string]string) (p Point, err error) {
	sink, err := startReceiver(base.ReceiverLatency)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, sink.stop()) }()
	concurrency, err := strconv.Atoi(settings["concurrency"])
	if err != nil {
		return p, err
	}
	args, err := files(l.dir, sink.url, concurrency)
	if err != nil {
		return p, err
	}
	args = append(args, "--roles", "deliver", "--deliver.poll-interval", "10ms", "--deliver.claim-batch",
		settings["batch"], "--claim.lease", settings["lease"])
	program, err := startPipeline(ctx, l.Pipeline, l.dir, l.db, args...)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, program.Stop()) }()
	n := base.Messages
	if base.ReceiverLatency > 0 { // as many as can be sent in the time
		n = min(n, max(concurrency, int(float64(concurrency)*base.Duration.Seconds()/base.ReceiverLatency.Seconds())))
	}
	if _, _, _, err := l.deliverOnce(ctx, program, sink, min(n, 4*concurrency)); err != nil {
		return p, err
	}
	s := &side{}
	for range base.Rounds {
		before, err := l.db.volume(ctx)
		if err != nil {
			return p, err
		}
		rate, cpu, books, err := l.deliverOnce(ctx, program, sink, n)
		if err != nil {
			return p, err
		}
		after, err := l.db.volume(ctx)
		if err != nil {
			return p, err
		}
		s.rates = append(s.rates, rate)
		s.spent(cpu)
		s.books.merge(books)
		s.wal = append(s.wal, float64(after.wal-before.wal)/float64(n))
		s.disk = append(s.disk, float64(after.outbox)/float64(n))
		s.memory = max(s.memory, memoryBytes(program.Pid))
	}
	return Point{Settings: settings, Rate: spread(s.rates), CPU: s.medianCPU(), WALBytes: spread(s.wal).Median,
		DiskBytes:    spread(s.disk).Median,
		MessageBytes: spread(s.disk).Median, MemoryBytes: s.memory, Books: s.books}, nil
}

// Err joins the points whose books do not balance.
func (s *Sweep) Err() error {
	var errs []error
	for _, p := range s.Points {
		if err := p.Books.Err(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.label(p.Settings), err))
		}
	}
	return errors.Join(errs...)
}
