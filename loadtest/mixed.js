// What does real life do to it? Good events, repeated events, bad events of every kind among good ones, and a receiver
// that is slow and fails now and then (make loadtest starts it so).
import http from 'k6/http';
import { check } from 'k6';
import { batch, latencyMS, number, requestsPer10s, seconds, usersFor } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { event, nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { eventsURL, send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

const rate = number('RATE', 3000);
const duration = seconds('DURATION', '2m');

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    good: {
      executor: 'constant-arrival-rate', exec: 'good', rate: requestsPer10s(rate), timeUnit: '10s', duration: `${duration}s`,
      preAllocatedVUs: usersFor(rate), tags: { load: 'good' },
    },
    repeated: {
      executor: 'constant-arrival-rate', exec: 'repeated', rate: 5, timeUnit: '1s', duration: `${duration}s`,
      preAllocatedVUs: 20, tags: { load: 'repeated' },
    },
    bad: {
      executor: 'constant-arrival-rate', exec: 'bad', rate: 5, timeUnit: '1s', duration: `${duration}s`,
      preAllocatedVUs: 20, tags: { load: 'bad' },
    },
    ...samplingScenario(duration),
  },
  thresholds: {
    ...bookThresholds,
    checks: ['rate==1'],
    'http_req_duration{load:good}': [`p(99)<${latencyMS}`],
    'duplicate_events{load:repeated}': ['count>0'],
    'rejected_events{load:bad}': ['count>0'],
    'rejected_events{load:good}': ['count==0'],
    'http_req_failed{to:events}': ['rate==0'],
    in_doubt_events: ['count==0'],
  },
  summaryTrendStats: ['avg', 'min', 'med', 'p(95)', 'p(99)', 'max'],
  ...bookTimes,
};

export const setup = openBooks;

export function good() {
  send(nextBody(), batch);
}

/** A client that missed the answer, and sends the same again at once. */
export function repeated() {
  const body = nextBody();
  const first = send(body, batch);
  const again = send(body, batch, { repeats: batch });
  if (first.status !== 200 || again.status !== 200) return;
  check(again, { 'a repeated request stores nothing': (a) => a.stored === 0 && a.duplicate === batch });

  // And one event twice in one request.
  const one = JSON.stringify(event());
  const twice = send(`[${one},${one}]`, 2, { repeats: 1 });
  if (twice.status !== 200) return;
  check(twice, { 'an event twice in a request is stored once': (a) => a.stored === 1 && a.duplicate === 1 });
}

// What can't be stored as it is, each with the field that the answer has to name.
const faulty = [
  { field: 'event_name', text: () => JSON.stringify(event({ event_name: undefined })) },
  { field: 'event_name', text: () => JSON.stringify(event({ event_name: '' })) },
  { field: 'occurred_at', text: () => JSON.stringify(event({ occurred_at: 'yesterday' })) },
  { field: 'occurred_at', text: () => JSON.stringify(event({ occurred_at: '9999-12-31T00:00:00Z' })) },
  { field: 'user_id', text: () => JSON.stringify(event({ user_id: 'nul' })).replace('"nul"', '"\\u0000"') },
  { field: 'properties', text: () => JSON.stringify(event({ properties: { text: 'lone' } })).replace('"lone"', '"\\ud800"') },
  { field: 'properties', text: () => JSON.stringify(event({ properties: { n: 1 } })).replace('"n":1', '"n":1e999999') },
  { field: 'colour', text: () => JSON.stringify(event({ colour: 'blue' })) },
];

/** Each kind of bad event between two good ones, and a body that is no JSON. */
export function bad() {
  const texts = [JSON.stringify(event())];
  for (const f of faulty) texts.push(f.text(), JSON.stringify(event()));
  const answer = send(`[${texts.join(',')}]`, texts.length);
  if (answer.status !== 429) {
    check(answer, {
      'good events between bad ones are stored': (a) => a.status === 200 && a.stored === faulty.length + 1,
      'each bad event is refused by index and field': (a) =>
        a.events.length === faulty.length &&
        faulty.every((f, i) => a.events[i].index === 2 * i + 1 && String(a.events[i].field).startsWith(f.field) && !!a.events[i].reason),
    });
  }
  const cut = http.post(eventsURL, '[{"event_name":', { headers: { 'Content-Type': 'application/json' }, responseCallback: http.expectedStatuses(400, 429), tags: { name: 'cut off' } });
  check(cut, { 'a body that is cut off is malformed': (r) => r.status === 400 || r.status === 429 });
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before, { deliveries: false });
}
