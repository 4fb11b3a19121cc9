// Package loadtest holds k6 scripts. Its tests keep them true without k6: they are type-checked, and each of them runs
// on the stand-in against a live pipeline.
package loadtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtest"
	"sluice.example/sluice/loadtest/stack"
	"sluice.example/sluice/loadtest/standin"
)

var programFolder string

func TestMain(m *testing.M) {
	var err error
	if programFolder, err = os.MkdirTemp("", "sluice-loadtest-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	if err := os.RemoveAll(programFolder); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(status)
}

// programs builds both, once, and returns their folder.
var programs = sync.OnceValues(func() (string, error) {
	build := exec.Command("go", "build", "-C", "..", "-o", programFolder+"/", "./cmd/pipeline", "./cmd/lab")
	out, err := build.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return programFolder, err
})

// live is a running pipeline with a receiver and a database of their own.
type live struct {
	*stack.Stack
	database string
}

func startLive(t *testing.T, pipelineArgs, receiverArgs []string) live {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	l := live{database: pgtest.URL(t)}
	dir := t.TempDir()
	logs := []string{filepath.Join(dir, "pipeline.log"), filepath.Join(dir, "receiver.log")}
	l.Stack, err = stack.Start(t.Context(), stack.Options{
		Pipeline: filepath.Join(bin, "pipeline"), Lab: filepath.Join(bin, "lab"), Folder: ".",
		PipelineLog: logs[0], ReceiverLog: logs[1], PipelineArgs: pipelineArgs, ReceiverArgs: receiverArgs,
		Env: []string{"DATABASE_URL=" + l.database},
	})
	t.Cleanup(func() {
		if t.Failed() {
			for _, log := range logs {
				text, err := os.ReadFile(log)
				t.Logf("%s (%v):\n%s", filepath.Base(log), err, text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// env is the environment of a script against l. Nothing here judges by time: the machine is shared.
func (l live) env(changes map[string]string) map[string]string {
	env := map[string]string{
		"URL": l.URL, "ADMIN": l.Admin, "RECEIVER": l.Receiver, "BATCH": "20", "LATENCY_MS": "60000", "REFUSAL_MS": "60000",
	}
	maps.Copy(env, changes)
	return env
}

func runScript(t *testing.T, o standin.Options) *standin.Outcome {
	t.Helper()
	o.Log = func(line string) { t.Log(line) }
	out, err := standin.Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%s: %v", o.Script, err)
	}
	return out
}

// jam keeps events from being stored, from lock to unlock, each of which works once. A pipeline that cannot store is
// not ready, so lock comes after a script has looked. Both may be called from any goroutine.
func jam(t *testing.T, database string) (lock, unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	var mu sync.Mutex
	exec := func(sql string) func() {
		return sync.OnceFunc(func() {
			mu.Lock()
			defer mu.Unlock()
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Error(err)
			}
		})
	}
	return exec(`begin; lock table events in share mode`), exec(`rollback`)
}

// scriptCase is how a script is run here, and what has to be seen beside passed checks and thresholds.
type scriptCase struct {
	pipelineArgs, receiverArgs []string
	env                        map[string]string
	users, iterations          int
	// sampled are metrics that must have got values.
	sampled []string
	// full: events can't be stored until one was refused.
	full bool
}

var scriptCases = map[string]scriptCase{
	"smoke":  {users: 1, iterations: 4},
	"steady": {users: 3, iterations: 6},
	"soak": {users: 2, iterations: 6, env: map[string]string{"WATCH_SECONDS": "0.1", "GROWTH": "10"},
		sampled: []string{"sluice_memory_bytes", "sluice_growth"}},
	"spike": {users: 4, iterations: 5},
	"mixed": {
		users: 2, iterations: 4, receiverArgs: []string{"--delay", "5ms", "--fail-rate", "0.2", "--lose-answers", "0.1",
			"--seed", "7"},
		sampled: []string{"duplicate_events", "rejected_events"},
	},
	"sdk": {users: 2, iterations: 4},
	"overload": {
		users: 12, iterations: 3, full: true, env: map[string]string{"BATCH": "100"},
		pipelineArgs: []string{"--buffer.max-bytes", "256KiB", "--buffer.max-batch-bytes", "64KiB"},
		sampled:      []string{"refused_events", "refusal_time"},
	},
	// 40 iterations in two steps: each is judged by 15 of its 20, which is the rate of the second step to the event.
	"ramp": {users: 4, iterations: 10, env: map[string]string{"BATCH": "10", "FROM": "100", "RATE": "200",
		"STEP_PERCENT": "100", "STEP": "1s"}},
}

// Every script passes all its checks and thresholds against a healthy pipeline.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("*.js")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(scriptCases) {
		t.Errorf("scripts %q, but cases for %q", files, slices.Sorted(maps.Keys(scriptCases)))
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".js")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, ok := scriptCases[name]
			if !ok {
				t.Fatal("there is no case for it")
			}
			l := startLive(t, c.pipelineArgs, c.receiverArgs)
			o := standin.Options{Script: file, Env: l.env(c.env), Users: c.users, Iterations: c.iterations}
			// The test watches the receiver until it got something: how soon that is, is up to the machine.
			patience := time.Now().Add(2 * time.Minute)
			o.More = func(scenario string, metric func(string) float64) bool {
				return scenario == "receiver" && metric("end_to_end_time") == 0 && time.Now().Before(patience)
			}
			if c.full {
				lock, unlock := jam(t, l.database)
				defer unlock()
				o.Env["URL"] = between(t, l.URL, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
					if r.Method == "POST" {
						lock()
					}
					return false
				})
				o.Progress = func(metric func(string) float64) {
					if metric("refused_events") > 0 {
						unlock()
					}
				}
			}
			out := runScript(t, o)
			for _, f := range out.Failures() {
				t.Error(f)
			}
			if got := out.Sum("acknowledged_events"); got == 0 {
				t.Error("no event was acknowledged")
			}
			for _, metric := range append(c.sampled, "end_to_end_time") {
				if out.Samples(metric) == 0 {
					t.Errorf("metric %s got no values", metric)
				}
			}
			if name == "ramp" {
				checkRamp(t, out.Summary["stdout"])
			}
		})
	}
}

func checkRamp(t *testing.T, summary string) {
	t.Helper()
	for _, want := range []string{"last good rate: 200 events/s", "it did not break", "the books balance"} {
		if !strings.Contains(summary, want) {
			t.Errorf("want %q in the summary:\n%s", want, summary)
		}
	}
}

// k6 would start every script with its defaults, and with what people set.
func TestScriptsStart(t *testing.T) {
	for name := range scriptCases {
		for _, env := range []map[string]string{
			{}, {"RATE": "1", "BATCH": "1"}, {"RATE": "1000000"},
			{"RATE": "100", "BATCH": "1000", "DURATION": "1s", "STEP": "1s"},
			{"RECEIVER": "http://127.0.0.1:9000/", "DURATION": "1h30m"},
			{"SPIKE": "0.5", "FROM": "5000", "STEP_PERCENT": "400", "VUS": "1"},
		} {
			if err := standin.Check(t.Context(), standin.Options{Script: name + ".js", Env: env}); err != nil {
				t.Errorf("%s with %v: %v", name, env, err)
			}
		}
		if name == "smoke" || name == "overload" {
			continue // they keep to no rate
		}
		for _, variable := range []string{"RATE", "BATCH"} {
			want := variable + "=fast: a number over 0"
			err := standin.Check(t.Context(), standin.Options{Script: name + ".js", Env: map[string]string{variable: "fast"}})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s with %s=fast: %v; want %q", name, variable, err, want)
			}
		}
	}
}

// between puts a proxy in front of the pipeline's events. meddle may answer itself, and reports that.
func between(t *testing.T, target string,
	meddle func(w http.ResponseWriter, r *http.Request, pass http.Handler) bool) string {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !meddle(w, r, proxy) {
			proxy.ServeHTTP(w, r)
		}
	})}
	return serve(t, &server)
}

// checkFailures wants these failures, by how their lines begin, and no others.
func checkFailures(t *testing.T, out *standin.Outcome, want ...string) {
	t.Helper()
	got := out.Failures()
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, w) }) {
			t.Errorf("no failure %q in\n%s", w, strings.Join(got, "\n"))
		}
	}
	for _, g := range got {
		if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(g, w) }) {
			t.Errorf("unexpected failure %q", g)
		}
	}
}

// A request that is answered "stored" and thrown away is found.
func TestLossIsFound(t *testing.T) {
	t.Parallel()
	l := startLive(t, nil, nil)
	var requests atomic.Int64
	proxy := between(t, l.URL, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		if requests.Add(1) != 3 {
			return false
		}
		fmt.Fprint(w, `{"stored":20,"duplicate":0,"rejected":0,"events":[]}`)
		return true
	})
	out := runScript(t, standin.Options{Script: "steady.js", Env: l.env(map[string]string{"URL": proxy}),
		Users: 2, Iterations: 4})
	checkFailures(t, out, "threshold acknowledged_minus_stored: count<=0, but it is 20")
}

// A request that comes twice is stored once.
func TestRepeatIsHarmless(t *testing.T) {
	t.Parallel()
	l := startLive(t, nil, nil)
	var repeated atomic.Int64
	proxy := between(t, l.URL, func(w http.ResponseWriter, r *http.Request, pass http.Handler) bool {
		var body bytes.Buffer
		if _, err := body.ReadFrom(r.Body); err != nil {
			t.Error(err)
		}
		for _, to := range []http.ResponseWriter{discard{http.Header{}}, w} {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body.Bytes()))
			pass.ServeHTTP(to, again)
		}
		repeated.Add(1)
		return true
	})
	out := runScript(t, standin.Options{Script: "steady.js", Env: l.env(map[string]string{"URL": proxy}),
		Users: 2, Iterations: 4})
	checkFailures(t, out)
	if got, want := out.Sum("duplicate_events"), float64(20*repeated.Load()); got != want || want == 0 {
		t.Errorf("%g events were answered as duplicates; want %g", got, want)
	}
}

// An event that stands in the table twice is found, although the counters know nothing of it.
func TestDoubleRowIsFound(t *testing.T) {
	t.Parallel()
	l := startLive(t, nil, nil)
	conn, err := pgx.Connect(t.Context(), l.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var once sync.Once
	out := runScript(t, standin.Options{Script: "steady.js", Env: l.env(nil), Users: 2, Iterations: 4,
		Progress: func(metric func(string) float64) {
			if metric("acknowledged_events") == 0 {
				return
			}
			once.Do(func() {
				tag, err := conn.Exec(t.Context(), `insert into events (tenant_id, event_id, event_name, occurred_at, received_at)
				select tenant_id, event_id, event_name, occurred_at - interval '1 millisecond', received_at from events limit 1`)
				if err != nil || tag.RowsAffected() != 1 {
					t.Errorf("insert the double: %v, %v", tag, err)
				}
			})
		}})
	checkFailures(t, out, `check "no event is stored twice"`, `check "events counted as stored are in the database"`,
		"threshold stored_minus_sent: count<=0, but it is 1", "threshold checks{books:yes}")
}

// A COMMIT that has become slow is found.
func TestSlowCommitIsFound(t *testing.T) {
	t.Parallel()
	l := startLive(t, nil, nil)
	conn, err := pgx.Connect(t.Context(), l.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `
		create function slow_commit() returns trigger language plpgsql as $$
		begin
			if coalesce(current_setting('test.slept', true), '') <> 'yes' then
				perform set_config('test.slept', 'yes', true);
				perform pg_sleep(0.3);
			end if;
			return null;
		end $$;
		create constraint trigger slow_commit after insert on events deferrable initially deferred
			for each row execute function slow_commit()`); err != nil {
		t.Fatal(err)
	}
	out := runScript(t, standin.Options{Script: "steady.js", Env: l.env(map[string]string{"LATENCY_MS": "300"}),
		Users: 2, Iterations: 2})
	checkFailures(t, out, "threshold http_req_duration{load:yes}: p(99)<300")
}

// The scripts and what they import agree with k6's types.
func TestTypes(t *testing.T) {
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Fatalf("%v: the type check needs Node.js 18 or newer with npm (\"make test\" installs them on Debian)", err)
	}
	// Missing, or not those of package.json.
	if err := exec.CommandContext(t.Context(), "npm", "ls").Run(); err != nil {
		run("npm", "ci", "--no-audit", "--no-fund")
	}
	run("npx", "--no-install", "tsc", "--noEmit", "-p", ".")
}
