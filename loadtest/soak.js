// Does it stay as it is for hours? A moderate rate for a long time, with an eye on memory and on what piles up.
import http from 'k6/http';
import { sleep } from 'k6';
import exec from 'k6/execution';
import { Gauge, Trend } from 'k6/metrics';
import { admin, batch, latencyMS, number, requestsPer10s, seconds, usersFor } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

const rate = number('RATE', 3000);
const duration = seconds('DURATION', '2h');
// How much memory and goroutines may grow after the first tenth of the time.
const growthLimit = number('GROWTH', 1.5);

const memory = new Gauge('sluice_memory_bytes');
const growth = new Trend('sluice_growth');

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    soak: {
      executor: 'constant-arrival-rate', exec: 'post', rate: requestsPer10s(rate), timeUnit: '10s', duration: `${duration}s`,
      preAllocatedVUs: usersFor(rate), tags: { load: 'yes' },
    },
    watch: { executor: 'constant-vus', exec: 'watch', vus: 1, duration: `${duration}s`, tags: { load: 'no' } },
    ...samplingScenario(duration),
  },
  thresholds: {
    ...bookThresholds,
    'http_req_duration{load:yes}': [`p(99)<${latencyMS}`],
    'http_req_failed{to:events}': ['rate==0'],
    refused_events: ['count==0'],
    in_doubt_events: ['count==0'],
    dropped_iterations: ['count==0'],
    'sluice_growth{of:process_resident_memory_bytes}': [`max<${growthLimit}`],
    'sluice_growth{of:go_goroutines}': [`max<${growthLimit}`],
  },
  summaryTrendStats: ['avg', 'min', 'med', 'p(95)', 'p(99)', 'max'],
  ...bookTimes,
};

export const setup = openBooks;

export function post() {
  send(nextBody(), batch);
}

/** @type {Record<string, number>} */
const warm = {};

/** One look at the process, every WATCH_SECONDS. It runs in one virtual user only. */
export function watch() {
  const response = http.get(`${admin}/metrics`, { tags: { name: 'GET /metrics' } });
  for (const of of ['process_resident_memory_bytes', 'go_goroutines']) {
    const line = new RegExp(`^${of} (\\S+)$`, 'm').exec(String(response.body));
    if (!line) continue;
    const value = Number(line[1]);
    if (of === 'process_resident_memory_bytes') memory.add(value);
    // Caches, pools and the buffer have filled by then.
    if (exec.scenario.progress < 0.1) continue;
    if (warm[of] === undefined) warm[of] = value;
    growth.add(value / warm[of], { of });
  }
  sleep(number('WATCH_SECONDS', 10));
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before);
}
