package standin

import (
	"fmt"
	"regexp"
	"strconv"
)

// Threshold is one demand of a script and how it ended.
type Threshold struct {
	Metric, Expression string
	Value              float64
	OK                 bool
	series             *series
	statistic, compare string
	limit              float64
}

var thresholdForm = regexp.MustCompile(`^\s*(count|rate|value|avg|min|max|med|p\(\d+(?:\.\d+)?\))` +
	`\s*(<=|>=|<|>|===|==|!=)\s*(-?\d+(?:\.\d+)?)\s*$`)

// newThreshold parses a threshold; it has to name a metric that exists and a statistic that such a metric has.
func newThreshold(m *metrics, metric, expression string) (*Threshold, error) {
	parts := thresholdForm.FindStringSubmatch(expression)
	if parts == nil {
		return nil, fmt.Errorf("threshold %q of %s is not of the form \"p(95)<200\"", expression, metric)
	}
	s, err := m.watch(metric)
	if err != nil {
		return nil, fmt.Errorf("threshold %q: %w", expression, err)
	}
	if _, err := s.get(parts[1], 1); err != nil {
		return nil, fmt.Errorf("threshold %q of %s: %w", expression, metric, err)
	}
	limit, err := strconv.ParseFloat(parts[3], 64)
	return &Threshold{Metric: metric, Expression: expression, series: s, statistic: parts[1], compare: parts[2],
		limit: limit}, err
}

func (t *Threshold) judge(seconds float64) {
	t.Value, _ = t.series.get(t.statistic, seconds) // newThreshold has tried it
	switch t.compare {
	case "<":
		t.OK = t.Value < t.limit
	case "<=":
		t.OK = t.Value <= t.limit
	case ">":
		t.OK = t.Value > t.limit
	case ">=":
		t.OK = t.Value >= t.limit
	case "!=":
		t.OK = t.Value != t.limit
	default:
		t.OK = t.Value == t.limit
	}
}

func (t *Threshold) String() string {
	return fmt.Sprintf("%s: %s, but it is %g", t.Metric, t.Expression, t.Value)
}
