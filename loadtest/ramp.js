// How far does it go? The rate climbs in steps until a step is too slow, is refused, or can't be kept up. The run ends
// there and names the last good step.
import exec from 'k6/execution';
import { batch, latencyMS, number, requestsPer10s, seconds, usersFor } from './lib/settings.js';
import { bookThresholds, bookTimes, closeBooks, openBooks } from './lib/books.js';
import { nextBody } from './lib/events.js';
import { samplingScenario } from './lib/receiver.js';
import { send } from './lib/send.js';
import { values } from './lib/summary.js';

export { sampleReceiver } from './lib/receiver.js';

const from = number('FROM', 2000);
const to = number('RATE', 200000);
const factor = 1 + number('STEP_PERCENT', 25) / 100;
// Each step climbs for a quarter of its time and is judged by the rest.
const stepSeconds = seconds('STEP', '20s');
const climb = 0.25;

/** @type {number[]} events a second */
const steps = [];
for (let rate = from; rate < to && steps.length < 99; rate *= factor) steps.push(Math.round(rate));
steps.push(to);

const total = steps.length * stepSeconds;

/** @type {Record<string, import('k6/options').Threshold[]>} */
const judged = {};
steps.forEach((rate, i) => {
  // Not judged by its first few answers.
  const delayAbortEval = `${Math.ceil((i + climb) * stepSeconds + 3)}s`;
  judged[`http_req_duration{step:${rate}}`] = [{ threshold: `p(99)<${latencyMS}`, abortOnFail: true, delayAbortEval }];
  judged[`refused_requests{step:${rate}}`] = [{ threshold: 'rate<0.01', abortOnFail: true, delayAbortEval }];
  // No demand, but k6 keeps apart only what a threshold asks for.
  judged[`acknowledged_events{step:${rate}}`] = ['count>=0'];
});

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    ramp: {
      executor: 'ramping-arrival-rate', exec: 'post', startRate: requestsPer10s(from), timeUnit: '10s',
      stages: steps.flatMap((rate) => [
        { target: requestsPer10s(rate), duration: `${Math.round(stepSeconds * climb * 1000)}ms` },
        { target: requestsPer10s(rate), duration: `${Math.round(stepSeconds * (1 - climb) * 1000)}ms` },
      ]),
      preAllocatedVUs: usersFor(from), maxVUs: usersFor(Math.max(from, to)),
    },
    ...samplingScenario(total),
  },
  thresholds: { ...bookThresholds, ...judged, in_doubt_events: ['count==0'] },
  summaryTrendStats: ['avg', 'min', 'med', 'p(95)', 'p(99)', 'max', 'count'],
  ...bookTimes,
};

export const setup = openBooks;

export function post() {
  const at = exec.scenario.progress * steps.length;
  const step = Math.min(Math.floor(at), steps.length - 1);
  exec.vu.metrics.tags.step = at - step < climb ? 'climbing' : String(steps[step]);
  send(nextBody(), batch);
}

/** @param {import('./lib/books.js').Before} before */
export function teardown(before) {
  closeBooks(before);
}

/**
 * @param {unknown} data
 * @returns {Record<string, string>}
 */
export function handleSummary(data) {
  const rows = [];
  let lastGood = 0;
  let broke = '';
  for (const rate of steps) {
    const time = values(data, `http_req_duration{step:${rate}}`);
    if (!time || !(time.count > 0)) break;
    const refused = (values(data, `refused_requests{step:${rate}}`) || {}).rate || 0;
    const acknowledged = (values(data, `acknowledged_events{step:${rate}}`) || {}).count || 0;
    const share = acknowledged / (rate * stepSeconds * (1 - climb));
    const faults = [];
    if (time['p(99)'] >= latencyMS) faults.push(`p99 is over ${latencyMS} ms`);
    if (refused >= 0.01) faults.push('over 1 % of the requests were refused');
    if (share < 0.95) faults.push('less than 95 % of the rate was acknowledged');
    rows.push(`  ${String(rate).padStart(9)}  ${(share * 100).toFixed(0).padStart(5)} %  ${time.med.toFixed(1).padStart(8)}  ${time['p(99)'].toFixed(1).padStart(8)}  ${(refused * 100).toFixed(1).padStart(6)} %  ${faults.join(', ') || 'good'}`);
    if (faults.length > 0) {
      broke = `broke at ${rate} events/s: ${faults.join(', ')}`;
      break;
    }
    lastGood = rate;
  }
  const lost = (values(data, 'acknowledged_minus_stored') || {}).count || 0;
  const extra = (values(data, 'stored_minus_sent') || {}).count || 0;
  const balanced = (values(data, 'checks{books:yes}') || {}).rate === 1 && lost <= 0 && extra <= 0;
  const result = { last_good_rate: lastGood, reached_the_end: broke === '', broke, balanced };
  const text = [
    '',
    '   events/s  acked    p50 ms    p99 ms  refused',
    ...rows,
    '',
    lastGood > 0 ? `  last good rate: ${lastGood} events/s` : '  no step was good: set FROM lower',
    broke === '' ? '  it did not break: set RATE higher' : `  ${broke}`,
    balanced ? '  the books balance: nothing is lost or doubled' : `  THE BOOKS DO NOT BALANCE: ${Math.max(0, lost)} lost, ${Math.max(0, extra)} too many; see the checks above`,
    '',
  ].join('\n');
  /** @type {Record<string, string>} */
  const out = { stdout: text };
  if (__ENV.RESULT) out[__ENV.RESULT] = `${JSON.stringify(result, null, 2)}\n`;
  return out;
}
