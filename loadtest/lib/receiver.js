// End-to-end times, read off the receiver: each webhook carries the time that the client put into its event, and the
// receiver tells when the webhook came in. Both clocks have to agree, as they do on one machine.
import http from 'k6/http';
import { sleep } from 'k6';
import { endToEnd } from './metrics.js';
import { receiver } from './settings.js';

/** @type {Set<string>} */
let seen = new Set();

/**
 * The scenario that samples the receiver, where there is one. The script has to export sampleReceiver.
 * @param {number} duration seconds
 * @returns {Record<string, import('k6/options').Scenario>}
 */
export function samplingScenario(duration) {
  if (receiver === '') return {};
  return {
    receiver: { executor: 'constant-vus', exec: 'sampleReceiver', vus: 1, duration: `${duration}s`, tags: { load: 'no' } },
  };
}

/** One look at the receiver's last messages. It runs in one virtual user only, which remembers what it saw. */
export function sampleReceiver() {
  const response = http.get(`${receiver}/messages`, { tags: { name: 'GET receiver/messages' } });
  if (response.status === 200) {
    /** @type {any} */
    const answer = response.json();
    /** @type {Set<string>} */
    const visible = new Set();
    for (const m of answer.messages || []) {
      visible.add(m.idempotency_key);
      const sent = m.body && m.body.data && m.body.data.occurred_at;
      if (seen.has(m.idempotency_key) || (m.outcome !== 'accepted' && m.outcome !== 'answer lost') || !sent) continue;
      endToEnd.add(milliseconds(m.received_at) - milliseconds(sent));
    }
    seen = visible;
  }
  sleep(0.5);
}

/** @param {string} time RFC 3339, with any number of digits behind the second */
function milliseconds(time) {
  return Date.parse(time.replace(/(\.\d{3})\d+/, '$1'));
}
