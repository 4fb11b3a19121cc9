package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// histogram records durations from 1 us to a minute, 3 digits exact. Safe for concurrent use.
type histogram struct {
	mu  sync.Mutex
	hdr *hdrhistogram.Histogram
}

func newHistogram() *histogram {
	return &histogram{hdr: hdrhistogram.New(1, time.Minute.Microseconds(), 3)}
}

func (h *histogram) add(d time.Duration) {
	us := min(max(d.Microseconds(), 1), time.Minute.Microseconds())
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.hdr.RecordValue(us) // in range by the line above
}

// Latency is a histogram's summary, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

func (h *histogram) summary() *Latency {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := func(p float64) float64 { return float64(h.hdr.ValueAtQuantile(p)) / 1000 }
	return &Latency{
		Count: h.hdr.TotalCount(),
		P50:   at(50),
		P90:   at(90),
		P99:   at(99),
		P999:  at(99.9),
		Max:   float64(h.hdr.Max()) / 1000,
	}
}
