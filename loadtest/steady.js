// Does it hold this rate? RATE events a second for DURATION, whatever the answers take.
import { batch, latencyMS, number, requestsPer10s, seconds, usersFor } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

const rate = number('RATE', 10000);
const duration = seconds('DURATION', '2m');

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    steady: {
      executor: 'constant-arrival-rate', exec: 'post', rate: requestsPer10s(rate), timeUnit: '10s', duration: `${duration}s`,
      preAllocatedVUs: usersFor(rate), tags: { load: 'yes' },
    },
    ...samplingScenario(duration),
  },
  thresholds: {
    ...bookThresholds,
    'http_req_duration{load:yes}': [`p(99)<${latencyMS}`],
    'http_req_failed{to:events}': ['rate==0'],
    refused_events: ['count==0'],
    in_doubt_events: ['count==0'],
    // k6 itself was too slow, or had no user free: then the rate was not what it says.
    dropped_iterations: ['count==0'],
  },
  summaryTrendStats: ['avg', 'min', 'med', 'p(95)', 'p(99)', 'max'],
  ...bookTimes,
};

export const setup = openBooks;

export function post() {
  send(nextBody(), batch);
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before);
}
