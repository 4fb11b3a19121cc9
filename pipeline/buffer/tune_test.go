package buffer

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice.example/sluice/pipeline"
)

func TestLimit(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		sample sample
		want   limit
		says   string
	}{
		{sample{span: s}, byClients, "clients"},
		{sample{span: s, busy: s, commit: s, cores: 2}, byClients, "busy 50 %"},
		{sample{span: s, busy: 2 * s, commit: 19 * s / 10, cores: 2}, byCommit, "95 % of that in COMMIT"},
		{sample{span: s, busy: 2 * s, batches: 9, commit: s / 5, cpu: s / 2, cores: 2}, byCPU, "PostgreSQL"},
		{sample{span: s, busy: 2 * s, cores: 2}, byOutage, "no batch is written"},
		{sample{span: s, cpu: 2 * s, cores: 2, away: true}, byOutage, "database is away"},
		{sample{span: s, busy: s, cpu: 19 * s / 10, cores: 2}, byCPU, "1.9 of 2 cores"},
		{sample{span: s, busy: 2 * s, commit: 2 * s, cpu: 19 * s / 10, cores: 2}, byCPU, "this process"},
		{sample{span: s, busy: 2 * s, commit: 3 * s}, byCommit, "100 %"}, // a COMMIT that began in the interval before
	} {
		if got := c.sample.limit(2); got != c.want {
			t.Errorf("%+v is limited by %s, want %s", c.sample, got, c.want)
		}
		if got := c.sample.explain(c.want, 2); !strings.Contains(got, c.says) {
			t.Errorf("%+v is explained by %q, want %q in it", c.sample, got, c.says)
		}
	}
}

// The limit changes after three samples that agree.
func TestLimitChangesSlowly(t *testing.T) {
	v := verdict{limit: byClients}
	for i, c := range []struct{ found, want limit }{
		{byClients, byClients}, {byCommit, byClients}, {byCommit, byClients}, {byCPU, byClients}, {byCommit, byClients},
		{byCommit, byClients}, {byCommit, byCommit}, {byClients, byCommit}, {byCommit, byCommit}, {byCPU, byCommit},
		{byCPU, byCommit}, {byCPU, byCPU},
	} {
		if got := v.take(c.found); got != c.want {
			t.Errorf("sample %d: limited by %s after %s was found, want %s", i, got, c.found, c.want)
		}
	}
}

// The wait that is auto follows the time of a write, within its bounds, and stays while that is about the same.
func TestWaitFollowsTheWrites(t *testing.T) {
	b, err := New(DefaultConfig(), nil, NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	check := func(write, want time.Duration) {
		t.Helper()
		for range 30 {
			b.follow(sample{span: time.Second, busy: 20 * write, batches: 20})
		}
		if d := b.maxWait - want; max(d, -d) > want/3 || testutil.ToFloat64(b.m.maxWait) != b.maxWait.Seconds() {
			t.Errorf("writes of %s make the wait %s and the metric %v, want about %s",
				write, b.maxWait, testutil.ToFloat64(b.m.maxWait), want)
		}
	}
	check(2*time.Millisecond, 2*time.Millisecond)
	check(20*time.Millisecond, 20*time.Millisecond)
	before := b.maxWait
	for _, write := range []time.Duration{before * 6 / 5, before * 5 / 6} {
		b.follow(sample{span: time.Second, busy: 20 * write, batches: 20})
	}
	b.follow(sample{span: time.Second}) // nothing was written
	if b.maxWait != before {
		t.Errorf("writes that vary by a fifth move the wait from %s to %s, want it to stay", before, b.maxWait)
	}
	check(time.Second, mostWait)
	check(time.Microsecond, leastWait)
}

// The whole loop, against a writer that is all COMMIT: it names the limit, lets the wait follow, and the other way
// round when the load ends.
func TestTune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var usage Usage
		usage.Cores = 2
		cfg := DefaultConfig()
		b, stop := start(t, cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			time.Sleep(400 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			usage.Commit += 390 * time.Millisecond
			return echo(events), nil
		})
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		tuned := make(chan error, 1)
		go func() {
			now := func() Usage { mu.Lock(); defer mu.Unlock(); return usage }
			tuned <- b.Tune(ctx, now, slog.New(slog.NewTextHandler(&log, nil)))
		}()
		load, end := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for range 500 {
			clients.Go(func() {
				events := named("x", 100)
				for load.Err() == nil {
					if _, err := b.Add(t.Context(), events); err != nil {
						t.Errorf("Add = %v", err)
						return
					}
				}
			})
		}
		time.Sleep(100 * time.Second)
		if got := testutil.ToFloat64(b.m.maxWait); got != mostWait.Seconds() {
			t.Errorf("the wait is %v s beside writes of 0.4 s, want the most, %s", got, mostWait)
		}
		if got := testutil.ToFloat64(b.m.limited.WithLabelValues("commit")); got != 1 {
			t.Errorf("limited by commit is %v in the metrics, want 1", got)
		}
		end()
		clients.Wait()
		time.Sleep(2 * time.Minute)
		if got := testutil.ToFloat64(b.m.limited.WithLabelValues("clients")); got != 1 {
			t.Errorf("limited by clients is %v two minutes after the load, want 1", got)
		}
		cancel()
		if err := <-tuned; err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 ||
			!strings.Contains(lines[0], "limited by commit") || !strings.Contains(lines[1], "limited by clients") {
			t.Errorf("the log says\n%s\nwant that commit was the limit, then clients", log.String())
		}
		checkEmpty(t, b)
	})
}

// Fixed settings stay, and no more batches are written at once than there are writers.
func TestFixedSettingsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Writers, cfg.MaxEvents, cfg.MaxWait = 1, 10, 0
		var mu sync.Mutex
		writing, most := 0, 0
		b, stop := start(t, cfg, func(_ context.Context, events []pipeline.Event) ([]pipeline.Verdict, error) {
			mu.Lock()
			writing++
			most = max(most, writing)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			writing--
			mu.Unlock()
			return echo(events), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		tuned := make(chan error, 1)
		go func() { tuned <- b.Tune(ctx, func() Usage { return Usage{} }, slog.New(slog.DiscardHandler)) }()
		for range 60 {
			if err := b.AddAsync(named("x", 10)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Second)
		mu.Lock()
		atOnce := most
		mu.Unlock()
		if wait := testutil.ToFloat64(b.m.maxWait); wait != 0 || atOnce != 1 {
			t.Errorf("a wait of %v s with %d batches at once, want the settings as they were given", wait, atOnce)
		}
		cancel()
		if err := <-tuned; err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		checkEmpty(t, b)
	})
}
