// What a run can be told by environment variables (k6 run -e NAME=value). loadtest/README.md explains each.

/**
 * @param {string} name
 * @param {number} fallback
 */
export function number(name, fallback) {
  const text = __ENV[name];
  if (text === undefined || text === '') return fallback;
  const n = Number(text);
  if (!(n > 0)) throw new Error(`${name}=${text}: a number over 0 is wanted`);
  return n;
}

/**
 * @param {string} name
 * @param {string} fallback such as 90s, 5m or 2h
 * @returns {number} seconds
 */
export function seconds(name, fallback) {
  const text = __ENV[name] || fallback;
  const parts = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$/.exec(text);
  const s = parts ? Number(parts[1] || 0) * 3600 + Number(parts[2] || 0) * 60 + Number(parts[3] || 0) : 0;
  if (!(s > 0)) throw new Error(`${name}=${text}: a duration such as 90s, 5m or 1h30m is wanted`);
  return s;
}

/** @param {string} name @param {string} fallback */
function address(name, fallback) {
  const text = __ENV[name] === undefined ? fallback : __ENV[name];
  return text.replace(/\/+$/, '');
}

// Where the pipeline takes events, where it answers its operators, and where its webhooks end. Without a receiver
// nothing is known of end-to-end times.
export const url = address('URL', 'http://127.0.0.1:8080');
export const admin = address('ADMIN', 'http://127.0.0.1:9090');
export const receiver = address('RECEIVER', '');

export const writeKey = __ENV.WRITE_KEY || '';

// Events in one request, and the limit of the 99th percentile of the time to COMMIT.
export const batch = Math.round(number('BATCH', 100));
export const latencyMS = number('LATENCY_MS', 100);

/**
 * Requests a second for a rate of events a second. k6 takes whole numbers only, so timeUnit is ten seconds.
 * @param {number} events
 */
export function requestsPer10s(events) {
  return Math.max(1, Math.round((events * 10) / batch));
}

/**
 * Virtual users for a rate: enough for answers after two seconds, since a user waits for its answer.
 * @param {number} events a second
 */
export function usersFor(events) {
  return Math.max(10, Math.min(1000, Math.ceil((2 * events) / batch)));
}
