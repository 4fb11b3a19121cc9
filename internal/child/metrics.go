package child

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the values of a /metrics page, by the name of their family.
type Metrics map[string]*dto.MetricFamily

// Metrics reads the page of the admin address.
func (p *Process) Metrics(ctx context.Context) (Metrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/metrics: %s", p.Admin, res.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s/metrics: %w", p.Admin, err)
	}
	return families, nil
}

// Sum adds the values of a counter or gauge, or of a histogram's name_sum or name_count, over the series that have all
// of the labels, each as "name=value". A name that is not on the page sums up to 0.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	value := func(s *dto.Metric) float64 { return s.GetCounter().GetValue() + s.GetGauge().GetValue() }
	family := m[name]
	if family == nil {
		if base, ok := strings.CutSuffix(name, "_sum"); ok {
			family = m[base]
			value = func(s *dto.Metric) float64 { return s.GetHistogram().GetSampleSum() }
		} else if base, ok := strings.CutSuffix(name, "_count"); ok {
			family = m[base]
			value = func(s *dto.Metric) float64 { return float64(s.GetHistogram().GetSampleCount()) }
		}
	}
	for _, s := range family.GetMetric() {
		if has(s, labels) {
			sum += value(s)
		}
	}
	return sum
}

// By sums a counter or gauge up for each value of a label.
func (m Metrics) By(name, label string) map[string]float64 {
	sums := map[string]float64{}
	for _, s := range m[name].GetMetric() {
		for _, l := range s.GetLabel() {
			if l.GetName() == label {
				sums[l.GetValue()] += s.GetCounter().GetValue() + s.GetGauge().GetValue()
			}
		}
	}
	return sums
}

// AtMost counts what a histogram holds up to a bound, which has to be one of its buckets', in the series with the
// labels.
func (m Metrics) AtMost(name string, bound float64, labels ...string) (count float64) {
	for _, s := range m[name].GetMetric() {
		for _, b := range s.GetHistogram().GetBucket() {
			if b.GetUpperBound() == bound && has(s, labels) {
				count += float64(b.GetCumulativeCount())
			}
		}
	}
	return count
}

func has(s *dto.Metric, labels []string) bool {
	for _, want := range labels {
		if !slices.ContainsFunc(s.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName()+"="+l.GetValue() == want }) {
			return false
		}
	}
	return true
}
