package history

import (
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// clock is the times of a ring's points, which all series share.
type clock struct {
	most int
	at   []int64 // Unix milliseconds
	next int     // the place of the next point, once the ring is full
	last time.Time
}

// add takes a point's time, and returns how long that is after the one before it; 0 for the first.
func (c *clock) add(now time.Time) (since time.Duration) {
	if !c.last.IsZero() {
		since = now.Sub(c.last)
	}
	c.last = now
	if len(c.at) < c.most {
		c.at = append(c.at, now.UnixMilli())
		return since
	}
	c.at[c.next] = now.UnixMilli()
	c.next = (c.next + 1) % c.most
	return since
}

// place is where the point is that i others are older than.
func (c *clock) place(i int) int { return (c.next + i) % len(c.at) }

// newest is the place of the point that was added last.
func (c *clock) newest() int { return c.place(len(c.at) - 1) }

func (c *clock) times() []time.Time {
	times := make([]time.Time, len(c.at))
	for i := range times {
		times[i] = time.UnixMilli(c.at[c.place(i)])
	}
	return times
}

// empty is a ring of unknown points, as long as the clock's.
func (c *clock) empty() *ring {
	r := &ring{clock: c}
	r.grow(len(c.at))
	return r
}

// ring is the points of a series. Half the precision of a float64 is more than a chart shows.
type ring struct {
	clock *clock
	v     []float32
}

func (r *ring) grow(n int) {
	for len(r.v) < n {
		r.v = append(r.v, float32(math.NaN()))
	}
}

// at is the point that i others are older than.
func (r *ring) at(i int) float64 {
	if p := r.clock.place(i); p < len(r.v) {
		return float64(r.v[p])
	}
	return math.NaN()
}

func (r *ring) put(v float64) {
	r.grow(len(r.clock.at))
	r.v[r.clock.newest()] = float32(v)
}

// kind is what a series' points are made of.
type kind int

const (
	value  kind = iota // a gauge
	rate               // a counter, by the second
	median             // of a histogram
	p99                // of a histogram
)

type series struct {
	kind         kind
	labels       map[string]string
	fine, coarse *ring

	seen    bool // in this look
	known   bool // what was before is
	now     float64
	buckets []bucket
	// What was at the last fine and coarse points.
	before, beforeCoarse               float64
	bucketsBefore, bucketsBeforeCoarse []bucket
}

func (s *series) is(labels []*dto.LabelPair) bool {
	if len(labels) != len(s.labels) {
		return false
	}
	return !slices.ContainsFunc(labels, func(l *dto.LabelPair) bool {
		v, ok := s.labels[l.GetName()]
		return !ok || v != l.GetValue()
	})
}

func (s *series) has(labels map[string]string) bool {
	for name, v := range labels {
		if s.labels[name] != v {
			return false
		}
	}
	return true
}

// step adds a point to the fine ring, and to the coarse one at the end of its window. What was not seen is unknown.
func (s *series) step(since, window time.Duration, ends bool) {
	if !s.seen {
		s.fine.put(math.NaN())
		if ends {
			s.coarse.put(math.NaN())
		}
		return
	}
	s.seen = false
	s.fine.put(s.point(s.before, s.bucketsBefore, since))
	s.before, s.bucketsBefore = s.now, s.buckets
	if ends {
		s.coarse.put(s.point(s.beforeCoarse, s.bucketsBeforeCoarse, window))
		s.beforeCoarse, s.bucketsBeforeCoarse = s.now, s.buckets
	}
	s.known = true
}

func (s *series) point(before float64, buckets []bucket, since time.Duration) float64 {
	switch {
	case s.kind == value:
		return s.now
	case !s.known || since <= 0:
		return math.NaN()
	case s.kind == rate:
		return max(0, s.now-before) / since.Seconds()
	case s.kind == median:
		return quantile(0.5, s.buckets, buckets)
	}
	return quantile(0.99, s.buckets, buckets)
}

// bucket is how many observations are at most bound.
type bucket struct {
	bound float64
	count uint64
}

func bucketsOf(h *dto.Histogram) []bucket {
	all := make([]bucket, 0, len(h.GetBucket())+1)
	for _, b := range h.GetBucket() {
		all = append(all, bucket{b.GetUpperBound(), b.GetCumulativeCount()})
	}
	if n := len(all); n == 0 || !math.IsInf(all[n-1].bound, 1) {
		all = append(all, bucket{math.Inf(1), h.GetSampleCount()})
	}
	return all
}

// quantile is that of the observations between two moments, on a straight line inside its bucket; past the highest
// bound, that bound. NaN where there are none.
func quantile(q float64, now, before []bucket) float64 {
	count := func(i int) float64 {
		if i < 0 {
			return 0
		}
		if i < len(before) {
			return float64(now[i].count - before[i].count)
		}
		return float64(now[i].count)
	}
	last := len(now) - 1
	if last < 0 || count(last) == 0 {
		return math.NaN()
	}
	rank := q * count(last)
	for i := range now {
		if count(i) < rank || count(i) == 0 {
			continue
		}
		low := 0.0
		if i > 0 {
			low = now[i-1].bound
		}
		if math.IsInf(now[i].bound, 1) {
			return low
		}
		return low + (now[i].bound-low)*(rank-count(i-1))/(count(i)-count(i-1))
	}
	return math.NaN()
}
