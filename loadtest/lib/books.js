// What the pipeline itself says that it did, asked before and after the load, and what has to be true of it.
import http from 'k6/http';
import { check, sleep } from 'k6';
import { acknowledgedMinusStored, storedMinusSent } from './metrics.js';
import { admin, receiver, url } from './settings.js';

/**
 * The numbers of GET /v1/books, all tenants together. Those of the process count since it started, those of the
 * database since the time that was asked for.
 * @typedef {object} Books
 * @property {string} mark this moment, by the pipeline's clock
 * @property {Record<string, number>} process
 * @property {Record<string, number>} database
 */

/** @typedef {{books: Books, taken: number}} Before */

/** The thresholds that every script has: nothing lost, nothing made up, and the books balance. */
export const bookThresholds = {
  acknowledged_minus_stored: ['count<=0'],
  stored_minus_sent: ['count<=0'],
  'checks{books:yes}': ['rate==1'],
};

/** Reading the books takes long where the database is large. */
export const bookTimes = { setupTimeout: '15m', teardownTimeout: '30m' };

const tags = { books: 'yes' };

/**
 * @param {string} [since] counts in the database what came since then
 * @returns {Books}
 */
function readBooks(since) {
  const query = since === undefined ? '' : `?since=${encodeURIComponent(since)}`;
  const response = http.get(`${admin}/v1/books${query}`, { tags: { name: 'GET /v1/books' }, timeout: '10m' });
  if (response.status !== 200) {
    throw new Error(`GET ${admin}/v1/books: ${response.status || response.error} ${response.body || ''}: ADMIN has to be the admin address of the pipeline (admin.listen)`);
  }
  /** @type {any} */
  const answer = response.json();
  /** @type {Books} */
  const sum = { mark: answer.mark, process: {}, database: {} };
  for (const tenant of answer.tenants) {
    for (const side of /** @type {const} */ (['process', 'database'])) {
      for (const [name, n] of Object.entries(tenant[side])) sum[side][name] = (sum[side][name] || 0) + Number(n);
    }
  }
  return sum;
}

/**
 * Messages that the receiver took, each once.
 * @returns {number}
 */
function receiverTook() {
  if (receiver === '') return 0;
  const response = http.get(`${receiver}/stats`, { tags: { name: 'GET receiver/stats' } });
  if (response.status !== 200) throw new Error(`GET ${receiver}/stats: ${response.status || response.error}: RECEIVER has to be a "lab receiver"`);
  return Number(response.json('accepted'));
}

/**
 * For setup(): the books before the load. Fails where the pipeline is not ready, so that no load is wasted on it.
 * @returns {Before}
 */
export function openBooks() {
  const ready = http.get(`${admin}/readyz`, { tags: { name: 'GET /readyz' } });
  if (ready.status !== 200) throw new Error(`${admin}/readyz: ${ready.status || ready.error} ${ready.body || ''}: start the pipeline first, and set URL (${url}) and ADMIN`);
  return { books: readBooks(), taken: receiverTook() };
}

/** For teardown(): waits until the pipeline is ready, and checks that it is. */
export function waitUntilReady() {
  check(null, { 'ready again after the load': () => within(30, () => http.get(`${admin}/readyz`).status === 200) }, tags);
}

/**
 * For teardown(): waits until the pipeline is quiet, then compares.
 * @param {Before} before
 * @param {{deliveries?: boolean}} [expect] deliveries: false where the receiver is made to fail, so that some promises
 *   are still to be retried
 */
export function closeBooks(before, expect) {
  const deliveries = !expect || expect.deliveries !== false;
  waitUntilReady();
  let after = readBooks(before.books.mark);
  within(60, () => {
    after = readBooks(before.books.mark);
    return after.process.in_flight === 0 && (!deliveries || receiver === '' || after.database.due + after.database.leased === 0);
  });
  const taken = receiverTook() - before.taken;
  const db = after.database;
  /** @param {string} name */
  const grew = (name) => after.process[name] - before.books.process[name];
  const accounted = ['rejected', 'refused', 'failed', 'stored', 'duplicate', 'quarantined'].reduce((sum, name) => sum + grew(name), 0);

  console.log(`books, process:  received ${grew('received')} = stored ${grew('stored')} + duplicate ${grew('duplicate')} + rejected ${grew('rejected')} + refused ${grew('refused')} + failed ${grew('failed')} + quarantined ${grew('quarantined')} + in flight ${after.process.in_flight}`);
  console.log(`books, database: stored ${db.stored}, twice ${db.twice}; decided ${db.decided} = sent ${db.sent} + skipped ${db.skipped} + dead ${db.dead} + due ${db.due} + leased ${db.leased}; the receiver took ${taken}`);

  check(after, {
    'nothing is left in flight': () => after.process.in_flight === 0,
    'received = stored + duplicate + rejected + refused + failed + quarantined': () => grew('received') === accounted,
    'events counted as stored are in the database': () => grew('stored') === db.stored,
    'no event is stored twice': () => db.twice === 0,
    'promises counted are in the outbox': () => grew('decided') === db.decided,
    'decided = sent + skipped + dead + due + leased': () => db.decided === db.sent + db.skipped + db.dead + db.due + db.leased,
  }, tags);
  if (receiver !== '') {
    check(after, { 'what was sent was received': () => taken >= db.sent }, tags);
    if (deliveries) check(after, { 'every promise is kept': () => db.due + db.leased + db.dead === 0 }, tags);
  }
  acknowledgedMinusStored.add(-db.stored);
  storedMinusSent.add(db.stored);
}

/**
 * @param {number} limit seconds
 * @param {() => boolean} done
 */
function within(limit, done) {
  const end = Date.now() + limit * 1000;
  while (!done()) {
    if (Date.now() > end) return false;
    sleep(0.2);
  }
  return true;
}
