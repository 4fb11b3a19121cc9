// Do other systems' clients get through? Events as Segment's SDKs post them and as CloudEvents in batches, at constant
// rates, beside single ones in every form.
import { check } from 'k6';
import { b64encode } from 'k6/encoding';
import { batch, latencyMS, number, requestsPer10s, seconds, usersFor, writeKey } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { event, fields, prepare } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { send } from './lib/send.js';

export { sampleReceiver } from './lib/receiver.js';

const rate = number('RATE', 3000);
const duration = seconds('DURATION', '2m');
const key = writeKey || 'loadtest';

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    segment: {
      executor: 'constant-arrival-rate', exec: 'segment', rate: requestsPer10s(rate), timeUnit: '10s', duration: `${duration}s`,
      preAllocatedVUs: usersFor(rate), tags: { load: 'segment' },
    },
    cloudevents: {
      executor: 'constant-arrival-rate', exec: 'cloudevents', rate: requestsPer10s(rate), timeUnit: '10s', duration: `${duration}s`,
      preAllocatedVUs: usersFor(rate), tags: { load: 'cloudevents' },
    },
    calls: {
      executor: 'constant-arrival-rate', exec: 'calls', rate: 5, timeUnit: '1s', duration: `${duration}s`,
      preAllocatedVUs: 20, tags: { load: 'calls' },
    },
    ...samplingScenario(duration),
  },
  thresholds: {
    ...bookThresholds,
    checks: ['rate==1'],
    'http_req_duration{load:segment}': [`p(99)<${latencyMS}`],
    'http_req_duration{load:cloudevents}': [`p(99)<${latencyMS}`],
    'acknowledged_events{load:cloudevents}': ['count>0'],
    'acknowledged_events{load:segment}': ['count>0'],
    'acknowledged_events{load:calls}': ['count>0'],
    'http_req_failed{to:events}': ['rate==0'],
    refused_events: ['count==0'],
    in_doubt_events: ['count==0'],
    dropped_iterations: ['count==0'],
  },
  summaryTrendStats: ['avg', 'min', 'med', 'p(95)', 'p(99)', 'max'],
  ...bookTimes,
};

export const setup = openBooks;

const library = { library: { name: '@segment/analytics-node', version: '3.1.0' } };

/**
 * An event as a call of Segment's. The time and the messageId are put in when it is sent.
 * @param {number} n
 */
function call(n) {
  const f = fields(n);
  return {
    type: 'track', event: f.event_name, anonymousId: f.anonymous_id, userId: f.user_id, properties: f.properties, integrations: {},
    context: { ...library, userAgent: f.user_agent, page: { url: f.page_url, referrer: f.referrer } },
    _metadata: { nodeVersion: '22.11.0', jsRuntime: 'node' },
  };
}

const nextBatch = prepare('segment', 'timestamp', 'messageId":"node-next-', call);

// The key is sent both ways, as the SDK does.
const headers = { Authorization: `Basic ${b64encode(`${key}:`)}`, 'User-Agent': 'analytics-node-next/latest' };

/** What the SDK for Node.js flushes. */
export function segment() {
  const body = `{"batch":${nextBatch()},"writeKey":${JSON.stringify(key)},"sentAt":"${new Date().toISOString()}"}`;
  check(send(body, batch, { path: '/v1/batch', headers, unsure: true }), { 'a batch is stored': (a) => a.status === 200 && a.stored === batch });
}

/**
 * An event as a CloudEvent. The time and the id are put in when it is sent.
 * @param {number} n
 */
function cloudEvent(n) {
  const f = fields(n);
  return {
    specversion: '1.0', type: f.event_name, source: '/shop/checkout', subject: f.session_id, datacontenttype: 'application/json',
    userid: f.user_id, anonymousid: f.anonymous_id, data: f.properties,
  };
}

const nextCloudEvents = prepare('cloudevents', 'time', 'id":"', cloudEvent);
const authorization = { Authorization: `Bearer ${key}` };

export function cloudevents() {
  const how = { path: '/v1/cloudevents', headers: { ...authorization, 'Content-Type': 'application/cloudevents-batch+json' } };
  check(send(nextCloudEvents(), batch, how), { 'a batch of CloudEvents is stored': (a) => a.status === 200 && a.stored === batch });
}

/** Single calls of each type, the type in the path, and a CloudEvent in both forms of a single one. */
export function calls() {
  /** @type {[string, object][]} */
  const all = [
    ['track', { event: 'add_to_cart', properties: { sku: 'sku-1' } }],
    ['identify', { traits: { plan: 'pro', email: 'someone@shop.example' } }],
    ['page', { name: 'Cart', properties: { url: 'https://shop.example/cart' } }],
    ['screen', { name: 'Cart' }],
    ['group', { groupId: 'team-7', traits: { seats: 5 } }],
    ['alias', { previousId: 'visitor-1' }],
  ];
  for (const [type, members] of all) {
    const { event_id: id, occurred_at: timestamp } = event();
    const body = JSON.stringify({ userId: 'customer-1', messageId: `ajs-next-${id}`, timestamp, context: library, writeKey: key, ...members });
    check(send(body, 1, { path: `/v1/${type}`, headers, unsure: true }), { [`a ${type} call is stored`]: (a) => a.status === 200 && a.stored === 1 });
  }

  const one = event();
  const structured = JSON.stringify({ ...cloudEvent(1), id: one.event_id, time: one.occurred_at });
  const how = { path: '/v1/cloudevents', headers: { ...authorization, 'Content-Type': 'application/cloudevents+json' } };
  check(send(structured, 1, how), { 'a structured CloudEvent is stored': (a) => a.status === 200 && a.stored === 1 });

  const two = event();
  const binary = {
    path: '/v1/cloudevents',
    headers: {
      ...authorization, 'Content-Type': 'application/json', 'ce-specversion': '1.0', 'ce-type': 'add_to_cart', 'ce-source': '/shop/cart',
      'ce-id': two.event_id, 'ce-time': two.occurred_at,
    },
  };
  check(send('{"sku":"sku-1"}', 1, binary), { 'a binary CloudEvent is stored': (a) => a.status === 200 && a.stored === 1 });
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before);
}
