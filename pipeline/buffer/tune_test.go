package buffer

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		{sample{span: s, busy: 2 * s, commit: s / 5, cpu: s / 2, cores: 2}, byCPU, "PostgreSQL"},
		{sample{span: s, busy: s, cpu: 19 * s / 10, cores: 2}, byCPU, "1.9 of 2 cores"},
		{sample{span: s, busy: 2 * s, commit: 2 * s, cpu: 19 * s / 10, cores: 2}, byCPU, "this process"},
		{sample{span: s, busy: 2 * s, commit: 3 * s}, byCommit, "100 %"}, // a COMMIT that began in the interval before
	} {
		if got := c.sample.limit(2); got != c.want {
			t.Errorf("%+v is limited by %s, want %s", c.sample, got, c.want)
		}
		if got := c.sample.explain(c.want, knobs{writers: 2}); !strings.Contains(got, c.says) {
			t.Errorf("%+v is explained by %q, want %q in it", c.sample, got, c.says)
		}
	}
}

func TestTuner(t *testing.T) {
	least, most := knobs{2, 2000, time.Millisecond}, knobs{4, 8000, 50 * time.Millisecond}
	const s = time.Second
	idle := func(knobs) sample {
		return sample{span: s, busy: s / 5, events: 1000, batches: 100, commit: 300 * time.Millisecond}
	}
	// A disk: each writer brings as much as the others. A processor: more writers bring nothing. Batches: only larger ones do.
	disk := func(k knobs) sample {
		return sample{span: s, busy: s * time.Duration(k.writers), events: 10_000 * k.writers, batches: 5 * k.writers, waiting: 10_000,
			commit: 9 * s / 10 * time.Duration(k.writers)}
	}
	processor := func(k knobs) sample {
		return sample{span: s, busy: s * time.Duration(k.writers), events: 40_000, batches: 100, waiting: 10_000, commit: s / 10}
	}
	batches := func(k knobs) sample {
		return sample{span: s, busy: s * time.Duration(k.writers), events: 10 * k.maxEvents, batches: 20, waiting: 10_000, commit: s}
	}
	type phase struct {
		sample func(knobs) sample
		n      int
	}
	for _, c := range []struct {
		name        string
		least, most knobs
		phases      []phase
		limit       limit
		want        knobs
	}{
		{"idle", least, most, []phase{{idle, 100}}, byClients, knobs{2, 2000, 2 * time.Millisecond}},
		{"two samples are not enough", least, most, []phase{{idle, 10}, {disk, 2}}, byClients, knobs{2, 2000, 50 * time.Millisecond}},
		{"disk", least, most, []phase{{disk, 100}}, byCommit, knobs{4, 2000, 50 * time.Millisecond}},
		{"processor", least, most, []phase{{processor, 60}}, byCPU, knobs{2, 2000, 20 * time.Millisecond}},
		{"batches", least, most, []phase{{batches, 200}}, byCommit, knobs{2, 8000, 50 * time.Millisecond}},
		{"a disk that becomes fast", least, most, []phase{{disk, 100}, {processor, 250}}, byCPU, knobs{2, 2000, 20 * time.Millisecond}},
		{"calm again", least, most, []phase{{disk, 100}, {idle, 100}}, byClients, knobs{2, 2000, 2 * time.Millisecond}},
		{"fixed", knobs{3, 500, 0}, knobs{3, 500, 0}, []phase{{disk, 100}, {idle, 100}, {processor, 100}}, byCPU, knobs{3, 500, 0}},
	} {
		tu := tuner{least: c.least, most: c.most, knobs: c.least, limit: byClients}
		for _, p := range c.phases {
			for range p.n {
				tu.step(p.sample(tu.knobs))
				k := tu.knobs
				if k.writers < c.least.writers || k.writers > c.most.writers || k.maxEvents < c.least.maxEvents || k.maxEvents > c.most.maxEvents ||
					k.maxWait < c.least.maxWait || k.maxWait > c.most.maxWait {
					t.Fatalf("%s: %+v is out of bounds", c.name, k)
				}
			}
		}
		got := tu.knobs
		if d := got.maxWait - c.want.maxWait; max(d, -d) <= c.want.maxWait/3 {
			got.maxWait = c.want.maxWait // it settles near the time of a write
		}
		if tu.limit != c.limit || got != c.want {
			t.Errorf("%s: limited by %s with %+v, want %s with %+v", c.name, tu.limit, got, c.limit, c.want)
		}
	}
}

// A processor that others use, too, moves by a third: that looks like a gain now and then, and does not last.
func TestTunerComesDownAgain(t *testing.T) {
	least, most := knobs{2, 2000, time.Millisecond}, knobs{4, 8000, 50 * time.Millisecond}
	noise := rand.New(rand.NewPCG(1, 2))
	tu := tuner{least: least, most: most, knobs: least, limit: byClients}
	const hours = 24 * 3600
	writers, events := 0, 0
	for range hours {
		k := tu.knobs
		tu.step(sample{span: time.Second, busy: time.Second * time.Duration(k.writers), events: 20_000 + noise.IntN(20_000), batches: 100,
			waiting: 10_000, commit: 100 * time.Millisecond})
		writers += k.writers
		events += k.maxEvents
	}
	if w, e := float64(writers)/hours, float64(events)/hours; w > 2.25 || e > 2500 {
		t.Errorf("on average %.2f writers and batches of up to %.0f events, want about the 2 and 2000 that are as fast", w, e)
	}
}

// The whole loop, against a writer that is all COMMIT: it gets more writers, says why, and goes back when the load ends.
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
			tuned <- b.Tune(ctx, func() Usage { mu.Lock(); defer mu.Unlock(); return usage }, slog.New(slog.NewTextHandler(&log, nil)))
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
		if k := b.settings(); k.writers != cfg.AutoWriters || testutil.ToFloat64(b.m.writers) != float64(cfg.AutoWriters) {
			t.Errorf("%+v under a load that only waits for COMMIT, the metric is %v; want %d writers", k, testutil.ToFloat64(b.m.writers), cfg.AutoWriters)
		}
		if got := testutil.ToFloat64(b.m.limited.WithLabelValues("commit")); got != 1 {
			t.Errorf("limited by commit is %v in the metrics, want 1", got)
		}
		end()
		clients.Wait()
		time.Sleep(2 * time.Minute)
		if k := b.settings(); k.writers != startWriters || testutil.ToFloat64(b.m.limited.WithLabelValues("clients")) != 1 {
			t.Errorf("%+v two minutes after the load, want %d writers and clients as the limit", k, startWriters)
		}
		cancel()
		if err := <-tuned; err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "limited by commit") || !strings.Contains(lines[1], "limited by clients") {
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
		if k := b.settings(); k != (knobs{1, 10, 0}) || atOnce != 1 {
			t.Errorf("%+v with %d batches at once, want the settings as they were given", k, atOnce)
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
