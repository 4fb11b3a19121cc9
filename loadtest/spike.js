// Does it come back from a sudden rush? RATE, then SPIKE times as much at once, then RATE again. In the rush it may
// refuse; before and after it may not, and it has to be as fast after as before.
import exec from 'k6/execution';
import { batch, latencyMS, number, requestsPer10s, seconds, usersFor } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

const rate = number('RATE', 3000);
const spike = number('SPIKE', 10);
const duration = seconds('DURATION', '3m');

// Where each phase ends, as a share of the whole.
const phases = [
  { name: 'before', end: 0.3 },
  { name: 'spike', end: 0.6 },
  { name: 'settling', end: 0.7 },
  { name: 'after', end: 1 },
];

const low = requestsPer10s(rate);
const high = requestsPer10s(rate * spike);
/** @param {number} share */
const part = (share) => `${Math.max(1, Math.round(duration * share * 1000))}ms`;

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    spike: {
      executor: 'ramping-arrival-rate', exec: 'post', startRate: low, timeUnit: '10s',
      stages: [
        { target: low, duration: part(0.3) },
        { target: high, duration: part(0.01) },
        { target: high, duration: part(0.28) },
        { target: low, duration: part(0.01) },
        { target: low, duration: part(0.4) },
      ],
      preAllocatedVUs: usersFor(rate), maxVUs: usersFor(rate * Math.max(1, spike)),
    },
    ...samplingScenario(duration),
  },
  thresholds: {
    ...bookThresholds,
    'http_req_duration{phase:before}': [`p(99)<${latencyMS}`],
    'http_req_duration{phase:spike}': ['p(99)<30000'],
    'http_req_duration{phase:after}': [`p(99)<${latencyMS}`],
    'refused_events{phase:before}': ['count==0'],
    'refused_events{phase:after}': ['count==0'],
    refusals_without_retry_after: ['count==0'],
    'http_req_failed{to:events}': ['rate==0'],
    in_doubt_events: ['count==0'],
  },
  summaryTrendStats: ['avg', 'min', 'med', 'p(95)', 'p(99)', 'max'],
  ...bookTimes,
};

export const setup = openBooks;

export function post() {
  const phase = phases.find((p) => exec.scenario.progress < p.end) || phases[phases.length - 1];
  exec.vu.metrics.tags.phase = phase.name;
  send(nextBody(), batch);
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before);
}
