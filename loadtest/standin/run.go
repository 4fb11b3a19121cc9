package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"
)

// Options are what to run and how much of it.
type Options struct {
	// Script is the path of the script.
	Script string
	Env    map[string]string
	// Users bounds the users of each scenario, Iterations is how often each of them goes through it. A scenario that
	// counts its iterations itself (per-vu-iterations) keeps its own number.
	Users, Iterations int
	// Log gets the lines of console.log; nil drops them.
	Log func(line string)
	// Progress, where set, is called after each iteration, from any goroutine.
	Progress func(metric func(name string) float64)
	// More, where set, is asked when a user has done its iterations, from any goroutine, and may order another one: for
	// what the script waits for by looking again and again.
	More func(scenario string, metric func(name string) float64) bool
}

// Outcome is how a run ended.
type Outcome struct {
	// Checks counts by name how often a check passed and failed.
	Checks map[string][2]int
	// Thresholds are all of the script's.
	Thresholds []*Threshold
	// Errors are what iterations, setup and teardown threw.
	Errors []error
	// Summary is what handleSummary() gave; nil where there is none.
	Summary map[string]string
	metrics *metrics
}

// Samples is how many values a metric got.
func (o *Outcome) Samples(metric string) int {
	if s := o.metrics.series[metric]; s != nil {
		return len(s.values)
	}
	return 0
}

// Sum adds up the values of a metric.
func (o *Outcome) Sum(metric string) float64 { return o.metrics.sum(metric) }

func (m *metrics) sum(name string) (sum float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.series[name]; s != nil {
		for _, v := range s.values {
			sum += v
		}
	}
	return sum
}

// Failures are the thresholds and checks that failed and the errors, one line each.
func (o *Outcome) Failures() (lines []string) {
	for _, t := range o.Thresholds {
		if !t.OK {
			lines = append(lines, "threshold "+t.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Checks)) {
		if c := o.Checks[name]; c[1] > 0 {
			lines = append(lines, fmt.Sprintf("check %q: failed %d of %d", name, c[1], c[0]+c[1]))
		}
	}
	for _, err := range o.Errors {
		lines = append(lines, err.Error())
	}
	return lines
}

// run is a test in progress.
type run struct {
	opts    Options
	script  string
	client  *http.Client
	metrics *metrics

	mu     sync.Mutex
	checks map[string][2]int
	errors []error
	shared map[string]string
}

func (r *run) count(check string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.checks[check]
	if ok {
		c[0]++
	} else {
		c[1]++
	}
	r.checks[check] = c
}

func (r *run) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, err)
}

// share returns the text that make makes, which is called once a test for each name.
func (r *run) share(name string, make func() (string, error)) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text, ok := r.shared[name]; ok {
		return text, nil
	}
	text, err := make()
	if err == nil {
		r.shared[name] = text
	}
	return text, err
}

// scriptOptions are the parts of a script's options that matter here.
type scriptOptions struct {
	Scenarios         map[string]json.RawMessage   `json:"scenarios"`
	Thresholds        map[string][]json.RawMessage `json:"thresholds"`
	SummaryTrendStats []string                     `json:"summaryTrendStats"`
	scenarios         map[string]*scenario
}

// Check runs the init code, and judges whether the options and thresholds are such that a test could start.
func Check(ctx context.Context, opts Options) error {
	r, err := newRun(opts)
	if err != nil {
		return err
	}
	u, free, err := newUser(ctx, r, 0)
	defer free()
	if err != nil {
		return err
	}
	options, err := u.options()
	if err == nil {
		_, err = r.thresholds(options)
	}
	return err
}

func newRun(opts Options) (*run, error) {
	if opts.Log == nil {
		opts.Log = func(string) {}
	}
	script, err := filepath.Abs(opts.Script)
	return &run{opts: opts, script: script, metrics: newMetrics(), checks: map[string][2]int{},
		shared: map[string]string{}}, err
}

// Run goes through a test. An error means that the script can't run at all; what went wrong while it ran is in the
// Outcome.
func Run(ctx context.Context, opts Options) (*Outcome, error) {
	r, err := newRun(opts)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	defer transport.CloseIdleConnections()
	r.client = &http.Client{Transport: transport}
	main, free, err := newUser(ctx, r, 0)
	defer free()
	if err != nil {
		return nil, err
	}
	options, err := main.options()
	if err != nil {
		return nil, err
	}
	thresholds, err := r.thresholds(options)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	data := "null"
	if main.has("setup") {
		v, err := main.call("setup")
		if err != nil {
			return nil, err
		}
		if data, err = main.stringify(v); err != nil {
			return nil, err
		}
	}
	if err := r.scenarios(ctx, options, data); err != nil {
		return nil, err
	}
	if main.has("teardown") {
		if _, err := main.call("teardown", main.parse(data)); err != nil {
			r.failed(err)
		}
	}
	seconds := time.Since(start).Seconds()
	for _, t := range thresholds {
		t.judge(seconds)
	}
	out := &Outcome{Checks: r.checks, Thresholds: thresholds, metrics: r.metrics}
	if main.has("handleSummary") {
		if out.Summary, err = main.summary(seconds, options); err != nil {
			r.failed(err)
		}
	}
	out.Errors = r.errors
	return out, nil
}

func (u *user) options() (o scriptOptions, err error) {
	text, err := u.stringify(u.exports.Get("options"))
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return o, fmt.Errorf("options: %w", err)
	}
	if len(o.Scenarios) == 0 {
		return o, fmt.Errorf("options: the script has no scenarios")
	}
	o.scenarios = map[string]*scenario{}
	for name, raw := range o.Scenarios {
		s := &scenario{}
		if err := json.Unmarshal(raw, s); err != nil {
			return o, fmt.Errorf("scenario %s: %w", name, err)
		}
		if err := s.validate(raw); err != nil {
			return o, fmt.Errorf("scenario %s: %w", name, err)
		}
		o.scenarios[name] = s
		if !u.has(s.Exec) {
			return o, fmt.Errorf("scenario %s: the script does not export %q", name, s.Exec)
		}
	}
	return o, nil
}

func (r *run) thresholds(o scriptOptions) (all []*Threshold, err error) {
	for _, metric := range slices.Sorted(maps.Keys(o.Thresholds)) {
		for _, raw := range o.Thresholds[metric] {
			var expression string
			if json.Unmarshal(raw, &expression) != nil {
				var object struct {
					Threshold string `json:"threshold"`
				}
				if err := json.Unmarshal(raw, &object); err != nil {
					return nil, fmt.Errorf("threshold of %s: %w", metric, err)
				}
				expression = object.Threshold
			}
			t, err := newThreshold(r.metrics, metric, expression)
			if err != nil {
				return nil, err
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// scenarios runs all scenarios at the same time, as far as they go.
func (r *run) scenarios(ctx context.Context, o scriptOptions, data string) error {
	p := pool.New().WithErrors()
	id := 0
	for _, name := range slices.Sorted(maps.Keys(o.scenarios)) {
		s := o.scenarios[name]
		users := min(s.users(), r.opts.Users)
		iterations := r.opts.Iterations
		if s.Executor == "per-vu-iterations" {
			iterations = 1
			if s.Iterations != nil {
				iterations = int(*s.Iterations)
			}
		}
		started := &atomic.Int64{}
		for range users {
			id++
			vu := id
			p.Go(func() error {
				u, free, err := newUser(ctx, r, vu)
				defer free()
				if err != nil {
					return err
				}
				u.scenario, u.tags = name, s.Tags
				for i := 0; i < iterations || r.opts.More != nil && r.opts.More(name, r.metrics.sum); i++ {
					u.iteration = int(started.Add(1) - 1)
					u.progress = float64(u.iteration) / float64(users*iterations)
					must(u.rt.Set("__ITER", i))
					began := time.Now()
					if _, err := u.call(s.Exec, u.parse(data)); err != nil {
						r.failed(fmt.Errorf("scenario %s: %w", name, err))
					}
					u.emit("iterations", 1, nil)
					u.emit("iteration_duration", float64(time.Since(began))/float64(time.Millisecond), nil)
					if r.opts.Progress != nil {
						r.opts.Progress(r.metrics.sum)
					}
				}
				return nil
			})
		}
	}
	return p.Wait()
}

func (u *user) summary(seconds float64, o scriptOptions) (map[string]string, error) {
	trend := o.SummaryTrendStats
	if trend == nil {
		trend = []string{"avg", "min", "med", "max", "p(90)", "p(95)"}
	}
	text, err := json.Marshal(u.run.metrics.summary(seconds, trend))
	if err != nil {
		return nil, err
	}
	v, err := u.call("handleSummary", u.parse(string(text)))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	if err := u.rt.ExportTo(v, &out); err != nil {
		return nil, fmt.Errorf("handleSummary() has to return texts by name: %w", err)
	}
	return out, nil
}
