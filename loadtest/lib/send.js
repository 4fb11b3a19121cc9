// Posting events, and counting what becomes of them.
import http from 'k6/http';
import * as metrics from './metrics.js';
import { url, writeKey } from './settings.js';

export const eventsURL = `${url}/v1/events`;

/** @type {Record<string, string>} */
const headers = { 'Content-Type': 'application/json' };
if (writeKey !== '') headers.Authorization = `Bearer ${writeKey}`;

const params = { headers, tags: { name: 'POST /v1/events', to: 'events' }, timeout: '60s' };

// What the pipeline may answer without being at fault: taken, all of them bad, full. Everything else counts as
// http_req_failed.
http.setResponseCallback(http.expectedStatuses({ min: 200, max: 299 }, 422, 429));

/**
 * @typedef {object} Answer
 * @property {number} status 0 where none came
 * @property {number} stored
 * @property {number} duplicate
 * @property {number} rejected
 * @property {{index: number, result: string, field?: string, reason?: string}[]} events
 * @property {string} retryAfter
 */

/**
 * Posts a body and counts the answer.
 * @param {string} body
 * @param {number} count events in it
 * @param {{path?: string, headers?: Record<string, string>, compression?: string, repeats?: number, unsure?: boolean}} [how]
 *   repeats: how many of the events were sent before, or stand in the body twice; unsure: 429 also stands for an
 *   outage here, so it leaves open whether they are stored
 * @returns {Answer}
 */
export function send(body, count, how) {
  let p = params;
  let to = eventsURL;
  let repeats = 0;
  if (how !== undefined) {
    const { path, repeats: n, unsure: _, ...changes } = how;
    repeats = n || 0;
    if (path !== undefined) to = `${url}${path}`;
    p = { ...params, ...changes, headers: { ...headers, ...how.headers } };
  }
  const sent = count - repeats;
  // Before the request: an iteration that is cut off may have stored them all the same.
  metrics.storedMinusSent.add(-sent);
  const response = http.post(to, body, p);
  const answer = {
    status: response.status, stored: 0, duplicate: 0, rejected: 0, events: [],
    retryAfter: response.headers['Retry-After'] || '',
  };
  // Also where it is 0: a threshold needs values to judge.
  metrics.refusedRequests.add(response.status === 429);
  metrics.refused.add(response.status === 429 ? count : 0);
  switch (response.status) {
    case 200:
    case 422: {
      Object.assign(answer, response.json());
      metrics.acknowledged.add(answer.stored);
      metrics.acknowledgedMinusStored.add(answer.stored);
      // A duplicate is stored, too, although we may not have been told when.
      metrics.storedMinusSent.add(Math.max(0, sent - answer.stored - answer.duplicate + repeats));
      metrics.duplicate.add(answer.duplicate);
      metrics.rejected.add(answer.rejected);
      break;
    }
    case 202:
      Object.assign(answer, response.json());
      metrics.accepted.add(count - answer.rejected);
      metrics.storedMinusSent.add(answer.rejected);
      metrics.rejected.add(answer.rejected);
      break;
    case 429:
      metrics.refusalTime.add(response.timings.duration);
      metrics.withoutRetryAfter.add(/^[1-9]\d*$/.test(answer.retryAfter) ? 0 : 1);
      if (!how || !how.unsure) metrics.storedMinusSent.add(sent);
      break;
    case 400:
    case 401:
    case 413:
    case 415:
      metrics.storedMinusSent.add(sent);
      break;
    default:
      metrics.inDoubt.add(count);
  }
  return answer;
}
