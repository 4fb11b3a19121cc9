package evaluate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// rate is what only rate rules have.
type rate struct {
	pipeline.Rate
	// ratio: numerator against denominator; otherwise one count.
	ratio        bool
	fire, clear  threshold
	z            float64
	require      int
	minN, minX   float64
	repeat       time.Duration
	step         time.Duration
	inhibitedBy  []string
	inhibitPlace *yamlfile.Section
	// minimumPlace is where the minimum stands, or would stand.
	minimumPlace yamlfile.Fault
}

// threshold is a relative distance from the baseline that has to be seen some times in a row.
type threshold struct {
	change float64
	times  int
}

// crossed says whether change is at least as far in the threshold's direction.
func (t threshold) crossed(change float64) bool {
	return t.change < 0 && change <= t.change || t.change > 0 && change >= t.change
}

// count is an event that a rate rule counts.
type count struct {
	rule  *rule
	batch int
	event *pipeline.Event
	role  role
}

func (l *loader) rateRule(r *rule, c *yamlfile.Section) {
	a := &rate{}
	r.rate = a
	a.Rule, a.Tenants = r.name, r.tenants
	minutes := func(key string, fallback, least time.Duration) time.Duration {
		d := c.Duration(key, fallback, least, maxDuration)
		if d%time.Minute != 0 {
			c.Fault(key, "%s is not a whole number of minutes; events are counted by the minute", duration.Format(d))
		}
		return d
	}
	a.Window = minutes("window", time.Hour, time.Minute)
	a.Every = minutes("every", 5*time.Minute, time.Minute)
	a.Settle = minutes("settle", 5*time.Minute, 0)
	a.repeat = c.Duration("repeat", 0, time.Minute, maxDuration)
	c.OneOf("no_data", "unknown")
	c.String("severity")
	l.counted(r, c)
	for _, t := range r.takes {
		a.Names = append(a.Names, t.on...)
	}
	if slices.Sort(a.Names); slices.Contains(a.Names, "*") {
		a.Names = nil
	}
	l.baseline(r, c)
	l.thresholds(r, c)
	if a.inhibitedBy = c.Strings("inhibited_by"); a.inhibitedBy != nil {
		a.inhibitPlace = c
	}
	if n := c.Get("payload"); n != nil {
		r.payload = l.scope(nil, map[string]*types.Type{"rate": types.NewObjectType("rate")}).template(l.src, n, c.At("payload"), 0)
	}
	var state bytes.Buffer
	for _, k := range []string{"numerator", "denominator", "count", "settle"} {
		if n := c.Get(k); n != nil {
			fmt.Fprint(&state, k)
			writeNode(&state, n)
		}
	}
	h := pipeline.HashUUID(state.String())
	a.Metric = fmt.Sprintf("%s#%x", r.stateKey, h[:4])
}

// counted reads what is counted.
func (l *loader) counted(r *rule, c *yamlfile.Section) {
	r.rate.ratio = c.Get("count") == nil
	if !r.rate.ratio {
		for _, k := range []string{"numerator", "denominator"} {
			if c.Get(k) != nil {
				c.Fault(k, "count stands alone; %s belongs to a ratio", k)
			}
		}
		r.takes = []take{l.side(r, c, "count", numerator)}
		return
	}
	if c.Get("numerator") == nil && c.Get("denominator") == nil {
		l.src.Fault(c.Node(), c.Where, "missing what is counted: either count, or numerator and denominator")
		return
	}
	r.takes = []take{l.side(r, c, "numerator", numerator), l.side(r, c, "denominator", denominator)}
}

func (l *loader) baseline(r *rule, c *yamlfile.Section) {
	a := r.rate
	periods, zone := 4, time.UTC
	a.step, a.require = 7*24*time.Hour, 3
	if n := c.Get("baseline"); n != nil {
		s := l.src.Section(n, c.At("baseline"), "step", "periods", "require", "timezone")
		a.step = s.Duration("step", a.step, time.Minute, maxDuration)
		periods = s.Int("periods", periods, 1, 52)
		a.require = s.Int("require", min(3, periods), 1, periods)
		if name := s.String("timezone"); name != "" {
			loc, err := time.LoadLocation(name)
			if err != nil {
				s.Fault("timezone", "%q is not a time zone; use a name such as Europe/Berlin", name)
			} else {
				zone = loc
			}
		}
	}
	if a.step < a.Window {
		c.Fault("baseline", "the step (%s) is shorter than the window (%s), which would be compared with itself", a.step, a.Window)
	}
	step := a.step
	a.Periods = func(end time.Time) []time.Time {
		ends := make([]time.Time, periods)
		for k := range ends {
			if days := step / (24 * time.Hour); step%(24*time.Hour) == 0 {
				ends[k] = end.In(zone).AddDate(0, 0, -int(days)*(k+1)).UTC() // the same time of the day, whatever the clocks did
			} else {
				ends[k] = end.Add(-step * time.Duration(k+1))
			}
		}
		return ends
	}
}

func (l *loader) thresholds(r *rule, c *yamlfile.Section) {
	a := r.rate
	a.z, a.minN, a.minX = 3, 0, 10
	known := []string{"expected"}
	if a.ratio {
		a.minN = 200
		known = []string{"denominator", "expected_numerator"}
	}
	a.minimumPlace = yamlfile.Fault{File: l.src.Name, Line: c.Node().Line, Column: c.Node().Column, Where: c.At("minimum")}
	if n := c.Get("minimum"); n != nil {
		a.minimumPlace.Line, a.minimumPlace.Column = n.Line, n.Column
		s := l.src.Section(n, c.At("minimum"), known...)
		a.minN = float64(s.Int("denominator", int(a.minN), 1, 1e9))
		a.minX = float64(s.Int(known[len(known)-1], int(a.minX), 1, 1e9))
	}
	read := func(key string, more ...string) (threshold, *yamlfile.Section) {
		if !c.Require(key, "how far from the baseline") {
			return threshold{}, nil
		}
		s := l.src.Section(c.Get(key), c.At(key), append(more, "drop", "rise", "for")...)
		t := threshold{times: s.Int("for", 1, 1, 1000)}
		if (s.Get("drop") == nil) == (s.Get("rise") == nil) {
			l.src.Fault(s.Node(), s.Where, "expected either drop or rise, as a percentage such as 30%%")
		}
		if drop := percentage(s, "drop", 100); drop > 0 {
			t.change = -drop
		}
		if rise := percentage(s, "rise", 100_000); rise > 0 {
			t.change = rise
		}
		return t, s
	}
	fire, s := read("fire", "z")
	a.fire = fire
	if s != nil {
		a.z = s.Float("z", a.z, 0, 20)
	}
	a.clear = threshold{fire.change / 2, fire.times}
	if c.Get("clear") != nil {
		a.clear, s = read("clear")
		if a.clear.change*fire.change < 0 || math.Abs(a.clear.change) >= math.Abs(fire.change) {
			l.src.Fault(s.Node(), s.Where, "clear has to be nearer to the baseline than fire, and in the same direction, or the rule would flap")
		}
	}
}

// percentage reads 30% as 0.3; 0 where the key is not there.
func percentage(s *yamlfile.Section, key string, most float64) float64 {
	text := s.String(key)
	if text == "" {
		return 0
	}
	number, ok := strings.CutSuffix(text, "%")
	p, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(p > 0 && p <= most) {
		s.Fault(key, "expected a percentage such as 30%%, at most %g%%, got %q", most, text)
		return 0
	}
	return p / 100
}

// judgement is what one window says.
type judgement struct {
	// Unknown says why nothing can be said; empty where something can.
	Unknown  string  `json:"unknown,omitempty"`
	Value    float64 `json:"value"`
	Baseline float64 `json:"baseline"`
	// Change is the relative distance of value from baseline.
	Change float64 `json:"change"`
	Z      float64 `json:"z"`
	N      float64 `json:"denominator,omitempty"`
	X      float64 `json:"numerator"`
}

// judge compares a window with those before it.
func (a *rate) judge(cur pipeline.Sample, before []pipeline.Sample) judgement {
	j := judgement{N: cur.N, X: cur.X}
	before = slices.DeleteFunc(slices.Clone(before), func(s pipeline.Sample) bool { return !s.Usable })
	if len(before) < a.require {
		j.Unknown = fmt.Sprintf("%d of %d earlier windows can be compared with", len(before), a.require)
		return j
	}
	if a.ratio {
		a.judgeRatio(&j, before)
	} else {
		a.judgeCount(&j, before)
	}
	if j.Unknown == "" {
		j.Change = j.Value/j.Baseline - 1
	}
	if math.IsNaN(j.Z) || math.IsInf(j.Z, 0) {
		j.Z = 0
	}
	return j
}

// judgeRatio is a test of two proportions, widened by how much the earlier windows differ among themselves.
func (a *rate) judgeRatio(j *judgement, before []pipeline.Sample) {
	var n, x float64
	for _, b := range before {
		n, x = n+b.N, x+b.X
	}
	if n == 0 || j.N == 0 || x == 0 {
		j.Unknown = "nothing to divide by"
		return
	}
	p := x / n
	j.Value, j.Baseline = j.X/j.N, p
	if j.N < a.minN || j.N*p < a.minX {
		j.Unknown = fmt.Sprintf("too little happened: %g, of which %.1f were expected to count", j.N, j.N*p)
		return
	}
	chi := 0.0
	for _, b := range before {
		if v := b.N * p * (1 - p); v > 0 {
			chi += (b.X - b.N*p) * (b.X - b.N*p) / v
		}
	}
	q := (j.X + x) / (j.N + n)
	j.Z = (j.Value - p) / math.Sqrt(dispersion(chi, len(before))*q*(1-q)*(1/j.N+1/n))
}

// judgeCount is the same for one count: Poisson, widened.
func (a *rate) judgeCount(j *judgement, before []pipeline.Sample) {
	k := float64(len(before))
	var sum float64
	for _, b := range before {
		sum += b.X
	}
	mean := sum / k
	j.Value, j.Baseline = j.X, mean
	if mean < a.minX {
		j.Unknown = fmt.Sprintf("too little happens: %.1f were expected", mean)
		return
	}
	chi := 0.0
	for _, b := range before {
		chi += (b.X - mean) * (b.X - mean) / mean
	}
	j.Z = (j.X - mean) / math.Sqrt(dispersion(chi, len(before))*mean*(1+1/k))
}

func dispersion(chi float64, k int) float64 {
	if k < 2 {
		return 1
	}
	return max(1, chi/float64(k-1))
}

// rateState is what is kept between two windows.
type rateState struct {
	// State is ok, pending, firing or unknown.
	State string `json:"state"`
	// Times counts windows in a row: towards firing, or, while firing, towards the all-clear.
	Times int       `json:"times"`
	Since time.Time `json:"since,omitzero"`
	// Sent counts the messages of this firing, SentAt is the window of the last.
	Sent   int       `json:"sent"`
	SentAt time.Time `json:"sent_at,omitzero"`
	Last   judgement `json:"last"`
}

func (s rateState) firing() bool { return !s.Since.IsZero() }

// next goes on by one window, and says which message that means: firing, resolved, or none.
func (a *rate) next(s rateState, j judgement, end time.Time) (_ rateState, message string) {
	s.Last = j
	switch {
	case j.Unknown != "":
		s.State, s.Times = "unknown", 0
		return s, ""
	case s.firing():
		s.State = "firing"
		if a.fire.crossed(j.Change) || a.clear.crossed(j.Change) {
			s.Times = 0
			if a.repeat > 0 && end.Sub(s.SentAt) >= a.repeat {
				s.Sent, s.SentAt = s.Sent+1, end
				return s, "firing"
			}
			return s, ""
		}
		if s.Times++; s.Times < a.clear.times {
			return s, ""
		}
		return rateState{State: "ok", Last: j, SentAt: s.Since, Sent: s.Sent}, "resolved"
	case a.fire.crossed(j.Change) && math.Abs(j.Z) >= a.z:
		s.State = "pending"
		if s.Times++; s.Times < a.fire.times {
			return s, ""
		}
		return rateState{State: "firing", Since: end, Sent: 1, SentAt: end, Last: j}, "firing"
	}
	return rateState{State: "ok", Last: j}, ""
}

// message makes the candidate that a state's change means.
func (p *Plan) message(r *rule, tenant int32, s rateState, kind string, end time.Time) {
	since := s.Since
	if kind == "resolved" {
		since = s.SentAt
	}
	raw, err := json.Marshal(struct {
		State string `json:"state"`
		judgement
		WindowStart time.Time `json:"window_start"`
		WindowEnd   time.Time `json:"window_end"`
		Since       time.Time `json:"since"`
	}{kind, s.Last, end.Add(-r.rate.Window), end, since})
	p.events = make([]pipeline.Event, 1)
	p.record.set(&p.events[0])
	p.vars = vars{event: &p.record, rate: &object{raw: string(raw)}}
	c := candidate{rule: r, tenant: tenant, key: fmt.Sprintf("%s@%d#%d", kind, since.Unix(), s.Sent), payload: raw}
	if err == nil && r.payload != nil {
		c.payload, err = r.payload.append(nil, &p.vars, p.engine.cfg.MaxPayloadBytes)
	}
	if err != nil {
		p.fail(r, 0, failedExpression, fmt.Errorf("payload: %w", err))
		return
	}
	c.keyHash = keyHash(r, c.key)
	p.candidates = append(p.candidates, c)
}

// rateFields are the members of rate, in the payload of a rate rule.
var rateFields = map[string]*types.FieldType{
	"state": propertyField("state", types.StringType), "value": propertyField("value", types.DoubleType),
	"baseline": propertyField("baseline", types.DoubleType), "change": propertyField("change", types.DoubleType),
	"z": propertyField("z", types.DoubleType), "numerator": propertyField("numerator", types.IntType),
	"denominator": propertyField("denominator", types.IntType), "window_start": propertyField("window_start", types.StringType),
	"window_end": propertyField("window_end", types.StringType), "since": propertyField("since", types.StringType),
}

// Rates are the rate rules in force, those first that keep others from firing.
func (e *Engine) Rates() []pipeline.Rate {
	if set := e.set.Load(); set != nil {
		return set.rates
	}
	return nil
}

// Judge goes on by one window: it gives the state to keep, and records a message if that means one. State is what the
// last Judge gave, nil at first. Inhibited says that another rule explains whatever is seen. Call committed after COMMIT.
func (e *Engine) Judge(ctx context.Context, tx pgx.Tx, metric string, tenant int32, end time.Time, cur pipeline.Sample, before []pipeline.Sample,
	state []byte, inhibited bool) (next []byte, firing bool, committed func(), err error) {
	r, err := e.rateBy(metric)
	if err != nil {
		return nil, false, nil, err
	}
	var s rateState
	if state != nil {
		if err := json.Unmarshal(state, &s); err != nil {
			return nil, false, nil, fmt.Errorf("evaluate: state of %s: %w", metric, err)
		}
	}
	p := &Plan{recorder: recorder{engine: e}}
	p.reset()
	s = p.judge(r, tenant, s, end, cur, before, inhibited)
	p.outcome.evaluated[r]++
	p.outcome.failures = p.failures
	if next, err = json.Marshal(s); err != nil {
		return nil, false, nil, fmt.Errorf("evaluate: state of %s: %w", metric, err)
	}
	return next, s.firing(), p.Committed, p.write(ctx, tx, work{cands: p.candidates})
}

func (p *Plan) judge(r *rule, tenant int32, s rateState, end time.Time, cur pipeline.Sample, before []pipeline.Sample, inhibited bool) rateState {
	j := r.rate.judge(cur, before)
	if inhibited {
		j.Unknown = "another rule fires: " + strings.Join(r.rate.inhibitedBy, ", ")
	}
	s, message := r.rate.next(s, j, end)
	if message != "" {
		p.message(r, tenant, s, message, end)
	}
	return s
}

// rollupSQL adds a batch's counts to their minutes.
const rollupSQL = `
insert into rate_minutes as m (metric, tenant_id, minute, shard, n, x, late_n, late_x)
select metric, tenant_id, minute, $8::smallint, n, x, late_n, late_x
from unnest($1::text[], $2::int[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
	as u(metric, tenant_id, minute, n, x, late_n, late_x) order by 1, 2, 3
on conflict (metric, tenant_id, minute, shard) do update set n = m.n + excluded.n, x = m.x + excluded.x,
	late_n = m.late_n + excluded.late_n, late_x = m.late_x + excluded.late_x`

// shards is how many batches can add to one minute at a time. A guess: twice the usual number of writers.
const shards = 8

type minuteKey struct {
	metric string
	tenant int32
	minute time.Time
}

// rollup gathers counts by minute.
func rollup(all []count) map[minuteKey]pipeline.Counts {
	byMinute := map[minuteKey]pipeline.Counts{}
	for _, c := range all {
		k, i := c.place()
		sum := byMinute[k]
		sum[i]++
		byMinute[k] = sum
	}
	return byMinute
}

func (c count) place() (minuteKey, int) {
	at := effective(c.event)
	i := 0
	if c.role == numerator {
		i = 1
	}
	if c.event.ReceivedAt.Sub(at) > c.rule.rate.Settle {
		i += 2
	}
	return minuteKey{c.rule.rate.Metric, c.event.Tenant, at.Truncate(time.Minute)}, i
}

func queueRollup(b *pgx.Batch, all []count) {
	queueMinutes(b, rollup(all), int16(rand.IntN(shards)))
}

func queueMinutes(b *pgx.Batch, byMinute map[minuteKey]pipeline.Counts, shard int16) {
	keys := slices.SortedFunc(maps.Keys(byMinute), func(a, b minuteKey) int {
		return cmp.Or(cmp.Compare(a.metric, b.metric), cmp.Compare(a.tenant, b.tenant), a.minute.Compare(b.minute))
	})
	metrics, tenants, minutes := make([]string, len(keys)), make([]int32, len(keys)), make([]time.Time, len(keys))
	var sums [4][]int64
	for i, k := range keys {
		metrics[i], tenants[i], minutes[i] = k.metric, k.tenant, k.minute
		for j, n := range byMinute[k] {
			sums[j] = append(sums[j], n)
		}
	}
	b.Queue(rollupSQL, metrics, tenants, minutes, sums[0], sums[1], sums[2], sums[3], shard)
}

// Count adds to sums what a rate rule counts of stored events.
func (e *Engine) Count(metric string, events []pipeline.Event, sums map[pipeline.Minute]pipeline.Counts) error {
	r, err := e.rateBy(metric)
	if err != nil {
		return err
	}
	for _, c := range e.stored(r, events).counts {
		k, i := c.place()
		m := pipeline.Minute{Tenant: k.tenant, At: k.minute}
		sum := sums[m]
		sum[i]++
		sums[m] = sum
	}
	return nil
}

// AddCounts adds counts that batches did not make, since they did not know the rule. They have a shard of their own, so
// that no batch waits.
func (e *Engine) AddCounts(ctx context.Context, tx pgx.Tx, metric string, sums map[pipeline.Minute]pipeline.Counts) error {
	byMinute := make(map[minuteKey]pipeline.Counts, len(sums))
	for m, c := range sums {
		byMinute[minuteKey{metric, m.Tenant, m.At}] = c
	}
	var b pgx.Batch
	queueMinutes(&b, byMinute, -1)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("evaluate: add %d minutes to %s: %w", len(sums), metric, err)
	}
	return nil
}

func (e *Engine) rateBy(metric string) (*rule, error) {
	if set := e.set.Load(); set != nil && set.byMetric[metric] != nil {
		return set.byMetric[metric], nil
	}
	return nil, ErrNoRule
}
