package standin

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeScript(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.js")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// server answers POST /echo with its body, and other paths with the status that they name.
func server(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/echo" {
			w.Header().Set("X-Encoding", r.Header.Get("Content-Encoding"))
			_, _ = io.Copy(w, r.Body)
			return
		}
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const wholeLife = `
import http, { expectedStatuses } from 'k6/http';
import { check, sleep } from 'k6';
import { Counter, Trend } from 'k6/metrics';
import { SharedArray } from 'k6/data';
import { b64encode } from 'k6/encoding';
import exec from 'k6/execution';

const made = new Counter('made');
const size = new Trend('size');
const words = new SharedArray('words', () => ['one', 'two', 'three']);
const text = open('./script.js');

export const options = {
  scenarios: {
    a: { executor: 'constant-vus', exec: 'go', vus: 9, duration: '1h', tags: { load: 'yes' } },
    b: { executor: 'per-vu-iterations', exec: 'statuses', vus: 1, iterations: 2 },
  },
  thresholds: {
    'made{half:first}': ['count==6'],
    'made{half:second,load:yes}': [{ threshold: 'count==6', abortOnFail: true }],
    made: ['count>=12', 'count<=12'],
    size: ['p(50)==3', 'max<6', 'min>2', 'avg>3', 'med==3'],
    'http_req_failed{scenario:b}': ['rate==0.5'],
    dropped_iterations: ['count==0'],
    checks: ['rate==1'],
  },
};

export function setup() { return { from: 'setup', text: text.length }; }

export function go(data) {
  exec.vu.metrics.tags.half = exec.scenario.progress < 0.5 ? 'first' : 'second';
  made.add(1);
  const word = words[exec.scenario.iterationInTest % 3];
  const r = http.post(__ENV.URL + '/echo', JSON.stringify({ word, from: data.from }), { tags: { name: 'echo' } });
  size.add(word.length);
  check(r, {
    'echoed': (r) => r.status === 200 && r.json('word') === word && r.json().from === 'setup',
    'encoded': () => b64encode('user:') === 'dXNlcjo=',
    'compressed': () =>
      http.post(__ENV.URL + '/echo', 'x'.repeat(1000), { compression: 'gzip' }).headers['X-Encoding'] === 'gzip',
    'refused': () => http.get(__ENV.URL + '/429', { responseCallback: expectedStatuses(429) }).status === 429,
  });
  sleep(0.001);
}

export function statuses() {
  http.get(__ENV.URL + '/503');
  http.get(__ENV.URL + '/204');
}

export function teardown(data) {
  check(data, { 'teardown gets the data of setup': (d) => d.from === 'setup' && d.text > 100 });
}

export function handleSummary(data) {
  return { stdout: 'made ' + data.metrics.made.values.count };
}
`

func TestWholeLife(t *testing.T) {
	out, err := Run(t.Context(), Options{Script: writeScript(t, wholeLife), Env: map[string]string{"URL": server(t)},
		Users: 3, Iterations: 4})
	if err != nil {
		t.Fatal(err)
	}
	if f := out.Failures(); len(f) > 0 {
		t.Errorf("failures:\n%s", strings.Join(f, "\n"))
	}
	if got := out.Checks["echoed"]; got != [2]int{12, 0} {
		t.Errorf("check echoed = %v; want 12 passes of 3 users, 4 iterations each", got)
	}
	if got := out.Summary["stdout"]; got != "made 12" {
		t.Errorf("summary = %q; want made 12", got)
	}
}

// What is wrong in a run has to show.
func TestFailuresShow(t *testing.T) {
	const head = `
import { check } from 'k6';
import { Counter } from 'k6/metrics';
const lost = new Counter('lost');
export const options = { scenarios: { s: { executor: 'per-vu-iterations', exec: 'go', vus: 1, iterations: 1 } },
  thresholds: { lost: ['count<=0'] } };
`
	for _, c := range []struct{ body, want string }{
		{`export function go() { lost.add(2); } export function teardown() { lost.add(-1); }`,
			"threshold lost: count<=0, but it is 1"},
		{`export function go() { check(1, { fine: true, 'one is two': (n) => n === 2 }); }`,
			`check "one is two": failed 1 of 1`},
		{`export function go() { throw new Error('boom'); }`,
			"scenario s: go(): Error: boom"},
		{`export function go() {} export function teardown() { throw new Error('not quiet'); }`,
			"teardown(): Error: not quiet"},
	} {
		out, err := Run(t.Context(), Options{Script: writeScript(t, head+c.body), Users: 1, Iterations: 1})
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if got := strings.Join(out.Failures(), "\n"); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: failures %q; want %q", c.body, got, c.want)
		}
	}
}

// What k6 would not run, or what is not known here, is an error.
func TestRefuses(t *testing.T) {
	const options = `
export const options = { scenarios: { s: { executor: 'constant-vus', exec: 'go', vus: 1, duration: '1s' } },
  thresholds: %s };
import http from 'k6/http'; import { Counter } from 'k6/metrics'; import { SharedArray } from 'k6/data';
const made = new Counter('made'); export function go() {} `
	for _, c := range []struct{ script, want string }{
		{fmt.Sprintf(options, `{ unknown: ['count==0'] }`),
			`there is no metric "unknown"`},
		{fmt.Sprintf(options, `{ made: ['p(95)<1'] }`),
			`a counter has no "p(95)"`},
		{fmt.Sprintf(options, `{ made: ['count is 1'] }`),
			`is not of the form`},
		{fmt.Sprintf(options, `{}`) + `http.get('http://127.0.0.1:1/');`,
			"a request belongs behind the init code"},
		{fmt.Sprintf(options, `{}`) + `made.add(1);`,
			"adding to a metric belongs behind the init code"},
		{fmt.Sprintf(options, `{}`) + `export function setup() { new Counter('late'); }`,
			"a metric belongs into the init code"},
		{fmt.Sprintf(options, `{}`) + `export function setup() { throw new Error('no pipeline'); }`,
			"setup(): Error: no pipeline"},
		{fmt.Sprintf(options, `{}`) + `new SharedArray('a', () => ({}));`,
			"has to return an array"},
		{fmt.Sprintf(options, `{}`) + `new SharedArray('a', () => [1]).push(2);`,
			"TypeError"},
		{`import { nothing } from 'k6/nothing';`,
			`no module "k6/nothing"`},
		{`import { nothing } from './nothing.js';`,
			"no such file"},
		{`import { sleep, nap } from 'k6'; export const options = {};`,
			"nap"},
		{`export const options = { scenarios: { s: { executor: 'constant-vus', exec: 'missing', duration: '1s' } } }`,
			`does not export "missing"`},
		{`export const options = { scenarios: { s: { executor: 'constant-rate', exec: 'go' } } }`,
			`executor "constant-rate" is none of`},
		{`export const options = { scenarios: { s: { executor: 'constant-vus', exec: 'go', vus: 1.5 } } }`,
			"constant-vus needs duration\nvus is 1.5"},
		{`export const options = { scenarios: { s: { executor: 'ramping-arrival-rate', exec: 'go', rate: 1,
			preAllocatedVUs: 9, maxVUs: 8,
			stages: [{ target: 0.5, duration: '5 s' }] } } }`,
			"ramping-arrival-rate has no rate\n" +
				"target is 0.5, not a whole number of at least 0\n" +
				"the duration of a stage is \"5 s\", no duration\n" +
				"maxVUs is 8, not a whole number of at least 9"},
	} {
		_, err := Run(t.Context(), Options{Script: writeScript(t, c.script), Users: 1, Iterations: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngave %v; want %q", c.script, err, c.want)
		}
	}
}
