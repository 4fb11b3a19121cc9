// Bodies, made before the load starts. While it runs, a request costs one join: the time and the front of the ids are
// put into the gaps of a prepared text.
import { SharedArray } from 'k6/data';
import { batch, number } from './settings.js';

const gap = '\u0001'; // can't stand in JSON
const prepared = 8;

// One event in so many matches the rule in rules.yaml and becomes a webhook.
const matchEvery = Math.max(1, Math.round(1 / number('MATCHING', 0.05)));

const pages = ['/', '/shoes', '/shoes/runner-42', '/cart', '/checkout', '/account'];

/**
 * What an event says, apart from its id and time.
 * @param {number} n
 */
export function fields(n) {
  const buys = n % matchEvery === 0;
  return {
    event_name: buys ? 'purchase_completed' : n % 7 === 3 ? 'add_to_cart' : 'page_view',
    anonymous_id: `visitor-${(n * 7919) % 10007}`,
    user_id: buys || n % 3 === 0 ? `customer-${(n * 104729) % 5003}` : undefined,
    session_id: `session-${(n * 31) % 4001}`,
    page_url: `https://shop.example${pages[n % pages.length]}?utm_source=newsletter&utm_campaign=spring`,
    referrer: 'https://search.example/?q=running+shoes',
    user_agent: 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36',
    properties: buys
      ? { order_id: `order-${n}`, amount_cents: 50000 + n, currency: 'EUR', items: 1 + (n % 4) }
      : { sku: `sku-${n % 977}`, position: n % 12, in_stock: n % 5 !== 0, price_cents: 1999 + (n % 300) },
  };
}

/** @param {number} n @param {number} digits */
function hex(n, digits) {
  return n.toString(16).padStart(digits, '0');
}

// A new number for each run, so that two runs in the same millisecond don't make the same ids.
const run = new SharedArray('run', () => [hex(Math.floor(Math.random() * 0x100000000), 8)]);

let made = 0;

// The first 24 characters of a UUIDv7, never the same twice in a run: time, user, and the user's own count.
function idHead() {
  const t = hex(Date.now(), 12);
  made++;
  return `${t.slice(0, 8)}-${t.slice(8)}-7${hex(__VU & 0xfff, 3)}-8${hex(made & 0xfff, 3)}-`;
}

/**
 * Prepares arrays of `batch` events, and gives the function that makes the next one: new ids, and the time of now.
 * @param {string} name
 * @param {string} time the member that holds the time
 * @param {string} id the member that holds the id, up to where the id itself begins: event_id":"
 * @param {(n: number) => object} rest the other members
 */
export function prepare(name, time, id, rest) {
  const bodies = new SharedArray(name, () => {
    const tail = hex(Math.floor(Math.random() * 0x100000000), 8);
    const list = [];
    for (let b = 0; b < prepared; b++) {
      const events = [];
      for (let i = 0; i < batch; i++) {
        events.push(`{"${time}":"${gap}${tail}${hex(i, 4)}",${JSON.stringify(rest(b * batch + i)).slice(1)}`);
      }
      list.push(`[${events.join(',')}]`);
    }
    return list;
  });
  /** @type {string[] | undefined} */
  let pieces;
  return () => {
    if (pieces === undefined) pieces = bodies[__VU % prepared].split(gap);
    return pieces.join(`${new Date().toISOString()}","${id}${idHead()}`);
  };
}

/** The next request's body, in our own form. */
export const nextBody = prepare('events', 'occurred_at', 'event_id":"', fields);

/**
 * One event with a new id, for scripts that look at single events.
 * @param {Record<string, unknown>} [changes] fields to set, or to leave out where undefined
 */
export function event(changes) {
  const id = `${idHead()}${run[0]}ffff`;
  return { occurred_at: new Date().toISOString(), event_id: id, ...fields(made * matchEvery + 1), ...changes };
}
