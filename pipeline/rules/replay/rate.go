package replay

import (
	"slices"
	"time"

	"sluice.example/sluice/pipeline/rules"
)

type rateKey struct {
	metric string
	tenant int32
}

// rate is a row of rate_states with its firings.
type rate struct {
	state   rules.RateState
	firings []firing
	// first is the earliest minute that was counted.
	first time.Time
}

// firing lasts until the zero time while it goes on.
type firing struct{ began, ended time.Time }

// count counts an event, as rollupSQL does. The first event of a tenant starts the windows.
func (r *Run) count(c rules.Count) {
	rules.Rollup(r.minutes, []rules.Count{c})
	k := rateKey{c.Rule.Rate.Metric, c.Event.Tenant}
	own := r.rates[k]
	if own == nil {
		a := c.Rule.Rate
		own = &rate{first: c.Minute()}
		r.rates[k] = own
		r.window(c.Rule, k, r.now.Add(-a.Settle).Truncate(a.Every).Add(a.Every))
	}
	if at := c.Minute(); at.Before(own.first) {
		own.first = at
	}
}

// window judges the window that ends at end, once it has settled, and then the next.
func (r *Run) window(of *rules.Rule, k rateKey, end time.Time) {
	a := of.Rate
	rank := 1 + slices.Index(r.set.Rates(), of) // inhibitors first
	r.laterAs(end.Add(a.Settle), rank, func() {
		own := r.rates[k]
		oldest := a.Oldest(end)
		w := rules.Window{Tenant: k.tenant, End: end, Current: r.sample(a, k, end, oldest)}
		for _, e := range a.Periods(end) {
			w.Before = append(w.Before, r.sample(a, k, e, oldest))
		}
		w.Inhibited = slices.ContainsFunc(a.Inhibitors, func(m string) bool {
			other := r.rates[rateKey{m, k.tenant}]
			return other != nil && other.state.Firing()
		})
		was := own.state.Firing()
		var found *rules.Findings
		own.state, found = r.set.Judge(of, own.state, w)
		if own.state.Firing() && !was {
			own.firings = append(own.firings, firing{began: end})
		} else if was && !own.state.Firing() {
			own.firings[len(own.firings)-1].ended = end
		}
		r.record(found)
		r.window(of, k, end.Add(a.Every))
	})
}

// sample sums the minutes of a window, as sampleSQL does. The rule counts from the start of the replay on, and from the
// tenant's first minute.
func (r *Run) sample(a *rules.Rate, k rateKey, end, oldest time.Time) (s rules.Sample) {
	start := end.Add(-a.Window)
	s.Usable = !start.Before(r.start) || !start.Before(r.rates[k].first)
	for at := start; at.Before(end); at = at.Add(time.Minute) {
		if c, ok := r.minutes[rules.Minute{Metric: k.metric, Tenant: k.tenant, At: at}]; ok {
			s.N += float64(c[0])
			s.X += float64(c[1])
			s.Usable = true
		}
	}
	for _, f := range r.rates[k].firings {
		if !f.began.Before(oldest) && f.began.Before(end) && (f.ended.IsZero() || f.ended.After(start)) {
			s.Usable = false
		}
	}
	return s
}
