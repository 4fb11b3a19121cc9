package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/sourcegraph/conc/pool"

	"sluice.example/sluice/bench"
	"sluice.example/sluice/internal/child"
	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/receiver"
	"sluice.example/sluice/internal/wait"
	"sluice.example/sluice/operate/books"
	"sluice.example/sluice/operate/importer"
)

const demoAbout = `Plays a day of a small shop, at high speed, through the real door: it starts a pipeline with a
private PostgreSQL and a receiver that fails now and then, sends the day's events over HTTP, duplicates and faulty
ones among them, waits until everything that the rules decided is delivered, and checks that the books balance. The
exit status is 0 only if they do. Then the day can be looked at in the console.`

type demoOptions struct {
	dir, rules string
	visits     int
	seed       uint64
	keep       bool
	programs   bench.Programs
}

func demoCommand(ctx context.Context, args []string, env cli.Env) error {
	o := demoOptions{}
	fs := cli.NewFlags(env, "demo", demoAbout, "lab demo --visits 5000 --keep")
	pipeline := pipelineFlag(fs)
	fs.StringVar(&o.dir, "data-dir", demoDir(), "`folder` of the demo's own PostgreSQL, logs and settings; made anew "+
		"each time")
	fs.StringVar(&o.rules, "rules", filepath.Join("rules", "shop.yaml"),
		"rules `file`; whatever it sends goes to the demo's receiver")
	fs.IntVar(&o.visits, "visits", 3000, "`visits` to the shop, each with about 7 events")
	fs.Uint64Var(&o.seed, "seed", 1, "`seed` of the day")
	fs.BoolVar(&o.keep, "keep", env.Terminal, "stay up until Ctrl-C, as it does where somebody looks on")
	if _, err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if o.visits < 1 || o.visits > 1_000_000 {
		return cli.Usagef("--visits: %d; has to be 1 to 1,000,000", o.visits)
	}
	rules, err := filepath.Abs(o.rules)
	if err != nil {
		return err
	}
	if _, err := os.Stat(rules); err != nil {
		return fmt.Errorf("--rules: %w; run the demo in the project's folder, or name the file", err)
	}
	o.rules = rules
	if o.programs, err = findPrograms(*pipeline); err != nil {
		return err
	}
	return runDemo(ctx, o, env)
}

func runDemo(ctx context.Context, o demoOptions, env cli.Env) (err error) {
	say := func(format string, args ...any) { fmt.Fprintf(env.Stdout, format+"\n", args...) }
	if err := makeDemoDir(o.dir); err != nil {
		return err
	}
	say("demo: starting a receiver that fails now and then, and a pipeline with a PostgreSQL of its own (logs in %s)",
		o.dir)
	receiver, err := child.Start(ctx, child.Command{
		Program: o.programs.Lab, Log: filepath.Join(o.dir, "receiver.log"),
		Env: append(child.Environ(), "RECEIVER_SECRET="+demoSecret, "RECEIVER_WEBHOOK_SECRET="+demoSecret),
		Args: []string{"receiver", "--listen", "127.0.0.1:0", "--fail-rate", "0.1", "--lose-answers", "0.05", "--delay",
			"2ms",
			"--seed", fmt.Sprint(o.seed)},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, receiver.Stop()) }()
	rules, err := readRuleNames(o.rules)
	if err != nil {
		return err
	}
	settings, err := writeDemoSettings(o, rules.destinations(), receiver.URL)
	if err != nil {
		return err
	}
	pipe, err := child.Start(ctx, child.Command{
		Program: o.programs.Pipeline, Log: filepath.Join(o.dir, "pipeline.log"), Env: child.Environ(),
		Args: []string{"run", "--config", settings, "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
			"--console.listen", "127.0.0.1:0",
			"--log.format", "json",
			"--sweep.every", demoSweep.String()},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pipe.Stop()) }()
	if err := pipe.AwaitReady(ctx); err != nil {
		return err
	}

	day := makeShopDay(o.seed, o.visits, time.Now().UTC())
	say("demo: playing a day: %d events, of which %d are repeats and %d faulty", len(day.lines), day.repeats, day.bad)
	sent, took, err := playDay(ctx, day, pipe.Events())
	if err != nil {
		return err
	}
	say("demo: acknowledged in %s, %.0f events a second; waiting for the deliveries", took.Round(time.Millisecond),
		float64(len(day.lines))/took.Seconds())

	r := demoReport{day: day, shopRules: rules.Ruleset == "shop", sent: sent}
	if err := r.collect(ctx, pipe, receiver); err != nil {
		return err
	}
	r.print(env.Stdout)
	faults := r.faults()
	for _, f := range faults {
		say("  WRONG: %s", f)
	}
	if len(faults) > 0 {
		return errors.New("the books do not balance")
	}
	say("  the books balance\n")
	if o.keep {
		r.printGoOn(env.Stdout, pipe, receiver)
		say("\nStaying up until Ctrl-C. The day, in the console (a link for one login):\n  %s", pipe.Console)
		<-ctx.Done()
		return nil
	}
	printRestart(env.Stdout, o, receiver)
	return nil
}

// playDay posts the day as several clients at once would, and adds up what the pipeline answered.
func playDay(ctx context.Context, day *shopDay, url string) (sent importer.Batch, took time.Duration, err error) {
	sender := &importer.Sender{Endpoint: url, RetryFor: time.Minute, Client: &http.Client{Timeout: time.Minute},
		Notice: func(string) {}}
	var batches []*importer.Batch
	first := int64(1)
	for lines := range slices.Chunk(day.lines, 100) {
		events := make([][]byte, len(lines))
		for i, line := range lines {
			events[i] = []byte(line)
		}
		batches = append(batches, importer.NewBatch(first, events))
		first += int64(len(lines))
	}
	start := time.Now()
	clients := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(8)
	for _, b := range batches {
		clients.Go(func(ctx context.Context) error { return sender.Send(ctx, b) })
	}
	if err := clients.Wait(); err != nil {
		return sent, 0, err
	}
	for _, b := range batches {
		sent.Stored += b.Stored
		sent.Duplicate += b.Duplicate
		sent.Rejected = append(sent.Rejected, b.Rejected...)
	}
	return sent, time.Since(start), nil
}

// demoReport is everything that the demo learned, from four sides: what was made, what the pipeline answered and
// counted, what the database holds, and what the receiver got.
type demoReport struct {
	day       *shopDay
	shopRules bool // the rules in force are the shop's, so what they decide is known
	sent      importer.Batch
	metrics   child.Metrics
	books     books.Process
	outbox    deliveries
	events    int64
	receiver  receiver.Stats
}

// demoSweep is how often the demo's pipeline looks for what is due.
const demoSweep = 400 * time.Millisecond

// collect waits until everything decided has been delivered, and reads the books.
func (r *demoReport) collect(ctx context.Context, pipe, receiver *child.Process) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, pipe.Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// Until nothing has been open, and nothing new decided, for some sweeps.
	for quiet, last := 0, int64(-1); quiet < 10; quiet++ {
		if r.outbox, r.events, err = readDeliveries(ctx, conn); err != nil {
			return err
		}
		if r.outbox.open() > 0 || r.outbox.total() != last {
			quiet, last = 0, r.outbox.total()
		}
		if !wait.For(ctx, demoSweep/4) {
			return fmt.Errorf("%d messages were not delivered in time; see %s", r.outbox.open(), pipe.Log())
		}
	}
	if r.metrics, err = pipe.Metrics(ctx); err != nil {
		return err
	}
	answer, err := books.Fetch(ctx, pipe.Admin, "")
	if err != nil {
		return err
	}
	for _, t := range answer.Tenants {
		r.books = t.Process // the demo has one tenant
	}
	return fetchJSON(ctx, receiver.URL+"/stats", &r.receiver)
}

// faults compares the sides; none means that the books balance.
func (r *demoReport) faults() (faults []string) {
	same := func(what string, a, b int64) {
		if a != b {
			faults = append(faults, fmt.Sprintf("%s: %d and %d", what, a, b))
		}
	}
	b := r.books
	same("events made that can be stored, and stored", int64(r.day.valid), r.sent.Stored)
	same("repeats made, and answered as duplicate", int64(r.day.repeats), r.sent.Duplicate)
	same("faulty events made, and answered as rejected", int64(r.day.bad), int64(len(r.sent.Rejected)))
	same("received, and what became of it", b.Received, b.Received-b.Difference())
	same("events sent and received", int64(len(r.day.lines)), b.Received-b.Refused-b.Failed)
	same("stored as counted, and rows of events", b.Stored, r.events)
	same("decided as counted, and rows of the outbox", b.Decided, r.outbox.total())
	if r.shopRules {
		same("signups, and welcomes decided", int64(r.day.signups), int64(r.metrics.Sum(decidedMetric, "rule=shop/welcome")))
		if r.day.big > 0 && r.metrics.Sum(decidedMetric, "rule=shop/big-purchase") == 0 {
			faults = append(faults, fmt.Sprintf("%d big purchases, and the sales team was told about none", r.day.big))
		}
	}
	same("sent, and distinct messages at the receiver", r.outbox.sent, r.receiver.Accepted)
	same("messages given up", 0, r.outbox.dead)
	same("signatures that did not fit", 0, r.receiver.BadSignatures)
	return faults
}

// decidedMetric counts messages by tenant and rule.
const decidedMetric = "sluice_evaluate_decided_messages_total"

func (r *demoReport) print(w io.Writer) {
	b := r.books
	fmt.Fprintf(w, `
  received   %6d events
  = stored   %6d   (%d rows in PostgreSQL)
  + repeats  %6d   (answered as duplicate, stored once)
  + refused  %6d   (to be sent again, and were)
  + rejected %6d   (each by its index, neighbours unharmed), for example:
`, b.Received, b.Stored, r.events, b.Duplicate, b.Refused+b.Failed, b.Rejected+b.Quarantined)
	for i, line := range r.sent.Rejected {
		if i == 3 {
			break
		}
		fmt.Fprintf(w, "                    %s: %s\n", line.Field, line.Reason)
	}
	fmt.Fprintf(w, "\n  decided   %6d messages, out of %d signups, %d purchases of 500.00 or more and %d carts left "+
		"behind over the day:\n",
		r.outbox.total(), r.day.signups, r.day.big, r.day.carts)
	rules := r.metrics.By(decidedMetric, "rule")
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		fmt.Fprintf(w, "            %6.0f   %s\n", rules[rule], rule)
	}
	fmt.Fprintf(w, `  = sent    %6d   (the receiver got %d requests: failed %d of them, lost the answer to %d, knew %d)
  + later   %6d   (in the grace of their rule)
  + skipped %6d
  + dead    %6d

`, r.outbox.sent, r.receiver.Requests, r.receiver.Failed, r.receiver.AnswersLost, r.receiver.Duplicates,
		r.outbox.later, r.outbox.skipped, r.outbox.dead)
}

func fetchJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(into)
}
