package evaluate

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline/rules"
)

// Metrics of the stage. They move only when what they count is committed.
type Metrics struct {
	evaluated  *prometheus.CounterVec
	decided    *prometheus.CounterVec
	suppressed *prometheus.CounterVec
	errors     *prometheus.CounterVec
	rules      *prometheus.GaugeVec
	reloadOK   prometheus.Gauge
	reloads    *prometheus.CounterVec
	failing    ruleGauge

	mu sync.Mutex
	// warned is when a rule's failure was logged last, by rule and kind.
	warned map[[2]string]time.Time
}

// NewMetrics registers the metrics of the stage.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		evaluated: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_evaluate_evaluated_events_total",
			Help: "Newly stored events that at least one rule listens to."}, []string{"tenant"}),
		decided: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_evaluate_decided_messages_total",
			Help: "Outbox rows that rules made, those of shadow rules included."}, []string{"tenant", "rule"}),
		suppressed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_evaluate_suppressed_total",
			Help: "Matches that made no message: duplicate (key used before), cooldown, cap, limit, " +
				"too-old (max_age)."}, []string{"rule", "reason"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_evaluate_rule_errors_total",
			Help: "Events about which a rule could not decide, by kind: expression, no-key, too-large, too-expensive, panic, " +
				"refused."},
			[]string{"rule", "kind"}),
		rules: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_evaluate_rules",
			Help: "Rules in the set in force, by state."}, []string{"state"}),
		reloadOK: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_evaluate_rules_reload_ok",
			Help: "1 if the rules in force are those of the file, 0 if the file has errors and older ones are."}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sluice_evaluate_rules_reloads_total",
			Help: "Times that the rules were read again, by result: ok, failed."}, []string{"result"}),
		failing: newRuleGauge("sluice_evaluate_rule_failing",
			"1 for a rule that failed on most of its latest events; rule_status holds a sample error."),
		warned: map[[2]string]time.Time{},
	}
	reg.MustRegister(m.evaluated, m.decided, m.suppressed, m.errors, m.rules, m.reloadOK, m.reloads, m.failing.vec)
	return m
}

// inForce shows how many rules are in force. What may be counted of each begins at 0, so that the first failure is a
// rise; see maxZeroed.
func (m *Metrics) inForce(set *rules.Set) {
	states := map[string]int{"active": 0, "shadow": 0, "off": 0}
	for _, r := range set.Rules() {
		states[r.State()]++
	}
	for state, n := range states {
		m.rules.WithLabelValues(state).Set(float64(n))
	}
	m.reloadOK.Set(1)
	for _, r := range zeroed(set.Rules()) {
		for _, kind := range rules.FailureKinds {
			m.errors.WithLabelValues(r.Name, kind)
		}
		for _, reason := range r.Suppressions() {
			m.suppressed.WithLabelValues(r.Name, reason)
		}
	}
}

// maxZeroed is the most rules whose series are made before there is something to count. A guess: with more rules the
// series of what never happened would be most of the page.
const maxZeroed = 1000

// zeroed are the rules whose series begin at 0.
func zeroed(all []*rules.Rule) []*rules.Rule {
	if len(all) > maxZeroed {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(all), func(r *rules.Rule) bool { return r.Off })
}

// ruleGauge is a gauge with a series for each rule. It is for one goroutine.
type ruleGauge struct {
	vec   *prometheus.GaugeVec
	rules map[string]bool
}

func newRuleGauge(name, help string) ruleGauge {
	return ruleGauge{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"rule"}),
		map[string]bool{}}
}

func (g ruleGauge) set(r *rules.Rule, value float64) {
	g.rules[r.Name] = true
	g.vec.WithLabelValues(r.Name).Set(value)
}

// only removes the series of other rules, which would keep their last value.
func (g ruleGauge) only(all []*rules.Rule) {
	stay := make(map[string]bool, len(all))
	for _, r := range all {
		stay[r.Name] = true
	}
	for name := range g.rules {
		if !stay[name] {
			g.vec.DeleteLabelValues(name)
			delete(g.rules, name)
		}
	}
}

// Committed counts what the last recording wrote and wakes whoever delivers. Call it once, after COMMIT.
func (r *recorder) Committed() {
	m := r.engine.metrics
	for tenant, n := range r.outcome.looked {
		m.evaluated.WithLabelValues(strconv.Itoa(int(tenant))).Add(float64(n))
	}
	e := r.engine
	e.tallyMu.Lock()
	defer e.tallyMu.Unlock()
	for of, n := range r.outcome.evaluated {
		e.tally(of, func(t *tally) { t.evaluated += int64(n) })
	}
	for of, n := range r.outcome.messages {
		e.tally(of.rule, func(t *tally) { t.messages += int64(n) })
		m.decided.WithLabelValues(strconv.Itoa(int(of.tenant)), of.rule.Name).Add(float64(n))
	}
	for s, n := range r.outcome.suppressed {
		e.tally(s.rule, func(t *tally) {
			switch s.reason {
			case rules.Duplicate:
				t.duplicate += int64(n)
			case rules.Cooldown:
				t.cooldown += int64(n)
			case rules.Cap, rules.OverLimit:
				t.capped += int64(n)
			}
		})
		m.suppressed.WithLabelValues(s.rule.Name, s.reason).Add(float64(n))
	}
	for _, f := range r.outcome.failures {
		e.tally(f.Rule, func(t *tally) {
			t.errors++
			if f.Missing() {
				t.missing++
			}
			if f.Kind == rules.FailedKey {
				if t.noKey++; t.lastError != "" {
					return // of what is the rule's fault more can be learned
				}
			}
			t.lastError, t.lastErrorAt = clean(f.Kind+": "+f.Err.Error()+" (event "+f.Event.String()+")"), time.Now()
		})
		m.errors.WithLabelValues(f.Rule.Name, f.Kind).Inc()
		if m.shouldWarn(f.Rule.Name, f.Kind, time.Now()) {
			e.log.LogAttrs(context.Background(), slog.LevelWarn, "a rule can't decide about an event; it is skipped and counted",
				slog.String("rule", f.Rule.Name), slog.String("kind", f.Kind), slog.Any("error", f.Err),
				slog.String("event_id", f.Event.String()))
		}
	}
	if r.outcome.due > 0 {
		e.onDecided(r.outcome.due)
	}
}

// warnEvery bounds the log lines about one rule and kind of failure.
const warnEvery = time.Minute

func (m *Metrics) shouldWarn(rule, kind string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := [2]string{rule, kind}
	if last, ok := m.warned[k]; ok && now.Sub(last) < warnEvery {
		return false
	}
	m.warned[k] = now
	return true
}
