// Does everything answer as it should? One user, every way to post, every kind of answer, in seconds.
import http from 'k6/http';
import { check } from 'k6';
import { batch } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { event, nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { eventsURL, send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    forms: { executor: 'per-vu-iterations', exec: 'forms', vus: 1, iterations: 3 },
    faults: { executor: 'per-vu-iterations', exec: 'faults', vus: 1, iterations: 1 },
    ...samplingScenario(3),
  },
  thresholds: {
    ...bookThresholds,
    checks: ['rate==1'],
    'http_req_failed{to:events}': ['rate==0'],
    in_doubt_events: ['count==0'],
  },
  ...bookTimes,
};

export const setup = openBooks;

/** The forms of a body that are all taken. */
export function forms() {
  const one = JSON.stringify(event());
  const wrapped = JSON.stringify({ events: [event(), event({ event_id: undefined })] });
  const lines = `${JSON.stringify(event())}\n${JSON.stringify(event())}\n`;
  const ndjson = { headers: { 'Content-Type': 'application/x-ndjson' } };
  check(null, {
    'one object is stored': () => send(one, 1).stored === 1,
    'the same object again is a duplicate': () => send(one, 1, { repeats: 1 }).duplicate === 1,
    'an array is stored': () => send(nextBody(), batch).stored === batch,
    '{"events": [...]} is stored': () => send(wrapped, 2).stored === 2,
    'NDJSON is stored': () => send(lines, 2, ndjson).stored === 2,
    'gzip is stored': () => send(nextBody(), batch, { compression: 'gzip' }).stored === batch,
    'zstd is stored': () => send(nextBody(), batch, { compression: 'zstd' }).stored === batch,
    'a match is stored': () => send(JSON.stringify(event({ event_name: 'purchase_completed', properties: { order_id: 'smoke', amount_cents: 70000 } })), 1).stored === 1,
    'respond-async is accepted': () => send(nextBody(), batch, { headers: { Prefer: 'respond-async' } }).status === 202,
  });
}

/** What is refused, and how. */
export function faults() {
  const mixed = JSON.stringify([event(), event({ event_name: undefined }), event()]);
  const answer = send(mixed, 3);
  check(answer, {
    'a bad event does not fail its neighbours': (a) => a.status === 200 && a.stored === 2 && a.rejected === 1,
    'it is named by index, field and reason': (a) => a.events.length === 1 && a.events[0].index === 1 && a.events[0].field === 'event_name' && !!a.events[0].reason,
  });
  check(send(JSON.stringify([event({ event_name: undefined })]), 1), { 'only bad events: 422': (a) => a.status === 422 && a.rejected === 1 });

  // Answers that are meant to be failures.
  const params = { responseCallback: http.expectedStatuses(400, 405, 415), tags: { name: 'faults' } };
  const malformed = http.post(eventsURL, '[{"event_name": "cut off', { ...params, headers: { 'Content-Type': 'application/json' } });
  check(malformed, {
    'malformed JSON: 400 with the offset': (r) => r.status === 400 && typeof r.json('offset') === 'number',
    'it is problem+json': (r) => r.headers['Content-Type'].startsWith('application/problem+json'),
  });
  check(http.post(eventsURL, 'a,b', { ...params, headers: { 'Content-Type': 'text/csv' } }), { 'unknown media type: 415': (r) => r.status === 415 });
  check(http.get(eventsURL, params), { 'GET: 405': (r) => r.status === 405 });
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before);
}
