// What does it do when there is more than it can take? Users who post as fast as they can, and do not wait when told
// to, keep the buffer full. It has to refuse at once, with 429 and a Retry-After that is worth obeying: polite users,
// who obey it, get through. After that it has to be ready, and hold all that it acknowledged.
import { check, sleep } from 'k6';
import { batch, number, seconds } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks, waitUntilReady } from './lib/books.js';
import { event, nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

const duration = seconds('DURATION', '1m');

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    greedy: { executor: 'constant-vus', exec: 'greedy', vus: Math.round(number('VUS', 300)), duration: `${duration}s`, gracefulStop: '1m' },
    polite: { executor: 'constant-vus', exec: 'polite', vus: 10, duration: `${duration}s`, gracefulStop: '2m' },
    ...samplingScenario(duration),
  },
  thresholds: {
    ...bookThresholds,
    // Without this there was no overload: raise VUS and BATCH, or lower buffer.max-bytes.
    refused_events: ['count>0'],
    refusals_without_retry_after: ['count==0'],
    refusal_time: [`p(95)<${number('REFUSAL_MS', 500)}`],
    'http_req_failed{to:events}': ['rate==0'],
    in_doubt_events: ['count==0'],
    'checks{polite:yes}': ['rate==1'],
    checks: ['rate==1'],
  },
  ...bookTimes,
};

export const setup = openBooks;

export function greedy() {
  send(nextBody(), batch);
}

const patience = Math.round(number('PATIENCE', 20));

/** Waits as long as it is told to, and sends the same again. */
export function polite() {
  const body = nextBody();
  let answer = send(body, batch);
  for (let tries = 1; answer.status === 429 && tries < patience; tries++) {
    sleep(Number(answer.retryAfter));
    answer = send(body, batch);
  }
  check(answer, { 'who waits as told gets through': (a) => a.status === 200 && a.stored + a.duplicate === batch }, { polite: 'yes' });
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  waitUntilReady();
  check(null, { 'takes events again after the load': () => send(JSON.stringify(event()), 1).status === 200 });
  closeBooks(before);
}
