package buffer

import (
	"container/heap"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/pipeline"
)

// TestRefusedAtOnceWhileAway: while the database is known to be away, one batch goes on trying and all else is refused
// at once, until it is back.
func TestRefusedAtOnceWhileAway(t *testing.T) {
	var first, last atomic.Pointer[time.Time]
	inside, release := make(chan struct{}, 8), make(chan error, 8)
	b, err := New(DefaultConfig(), func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
		inside <- struct{}{}
		return make([]pipeline.Verdict, len(events)), <-release
	}, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	b.RefuseWhile(func() (time.Time, time.Time) {
		if first.Load() == nil {
			return time.Time{}, time.Time{}
		}
		return *first.Load(), *last.Load()
	})
	away := func(since, until time.Duration) {
		begin, end := time.Now().Add(-since), time.Now().Add(-until)
		last.Store(&end)
		first.Store(&begin)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- b.Run(ctx) }()
	answers := make(chan error, 8)
	add := func() {
		_, err := b.Add(t.Context(), []pipeline.Event{{Name: "x"}})
		answers <- err
	}

	away(100*time.Second, time.Second)
	if err := b.Room(1); err != nil {
		t.Errorf("Room of an idle buffer = %v; want nil: somebody has to find out", err)
	}
	go add()
	<-inside
	var a *pipeline.Away
	if err := b.Room(1); !errors.As(err, &a) || a.Err != nil || a.RetryAfter < 99*time.Second {
		t.Errorf("Room = %v; want Away with a wait like the outage", err)
	}
	add()
	if err := <-answers; !errors.As(err, &a) || a.Err != nil || !errors.Is(err, pipeline.ErrUnavailable) {
		t.Errorf("Add beside the one that tries: %v; want Away at once", err)
	}
	if err := b.AddAsync([]pipeline.Event{{Name: "y"}}); err != nil {
		t.Errorf("AddAsync: %v; want it to wait in memory", err)
	}
	release <- errors.New("still away")
	if err := <-answers; !errors.As(err, &a) || a.Err == nil {
		t.Errorf("the one that tried: %v; want Away with a reason", err)
	}
	<-inside // the asynchronous one
	for what, set := range map[string]func(){
		"it has just begun":            func() { away(time.Second, 0) },
		"nobody has tried for a while": func() { away(time.Hour, time.Minute) },
	} {
		set()
		if err := b.Room(1); err != nil {
			t.Errorf("Room where %s = %v; want nil", what, err)
		}
	}
	release <- nil
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// visits are when clients come (back), as a heap.
type visits []visit

type visit struct {
	at    time.Duration
	tries int
}

func (v visits) Len() int           { return len(v) }
func (v visits) Less(i, j int) bool { return v[i].at < v[j].at }
func (v visits) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *visits) Push(x any)        { *v = append(*v, x.(visit)) }
func (v *visits) Pop() any {
	last := (*v)[len(*v)-1]
	*v = (*v)[:len(*v)-1]
	return last
}

// TestOutageThatClientsCanLiveWith lets clients come at a steady rate, with ten tries each as SDKs have, through
// outages of several lengths: hardly any is lost, and at no time do twice as many come as usual.
func TestOutageThatClientsCanLiveWith(t *testing.T) {
	const (
		perSecond = 200
		tries     = 10
		patience  = 8 * time.Second // ingest.answer-timeout
		window    = 5 * time.Second
	)
	for _, length := range []time.Duration{10 * time.Second, 30 * time.Second, 60 * time.Second, 170 * time.Second,
		10 * time.Minute} {
		var queue visits
		end := 3*length + time.Minute
		for at := -2 * window; at < end; at += time.Second / perSecond {
			queue = append(queue, visit{at: at})
		}
		total, lost := len(queue), 0
		heap.Init(&queue)
		counts := map[time.Duration]int{}
		for len(queue) > 0 {
			v := heap.Pop(&queue).(visit)
			counts[(v.at+2*window).Truncate(window)]++
			v.tries++
			answered := v.at
			switch {
			case v.at < 0 || v.at >= length:
				continue // stored
			case v.at < awayAfter:
				if answered += patience; answered >= length {
					continue // it waited, and was stored
				}
			}
			if v.tries == tries {
				lost++
				continue
			}
			v.at = answered + retryAfter(answered).Truncate(time.Second)
			heap.Push(&queue, v)
		}
		most := 0
		for at, n := range counts {
			if at < end {
				most = max(most, n)
			}
		}
		peak := float64(most) / (perSecond * window.Seconds())
		t.Logf("%s away: %d of %d lost, at most %.2f times the usual rate", length, lost, total, peak)
		if lost*100 >= total || peak >= 2 && length <= mostAway {
			t.Errorf("%s away: %d of %d lost, %.2f times the usual rate; want less than 1 %% and twice", length, lost, total,
				peak)
		}
	}
}
