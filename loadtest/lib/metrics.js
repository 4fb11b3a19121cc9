// Our own metrics. Every script has them, under the same names.
import { Counter, Rate, Trend } from 'k6/metrics';

// What the pipeline said of the events, each event once.
export const acknowledged = new Counter('acknowledged_events');
export const duplicate = new Counter('duplicate_events');
export const rejected = new Counter('rejected_events');
export const refused = new Counter('refused_events');
// 202: in memory, and no more was promised.
export const accepted = new Counter('accepted_events');
// No answer, or one that leaves open whether they are stored.
export const inDoubt = new Counter('in_doubt_events');

// Share of requests that were refused with 429.
export const refusedRequests = new Rate('refused_requests');
export const withoutRetryAfter = new Counter('refusals_without_retry_after');
// How fast a refusal comes.
export const refusalTime = new Trend('refusal_time', true);

// From the client's clock reading in the event to the receiver's when the webhook came in.
export const endToEnd = new Trend('end_to_end_time', true);

// Virtual users can't see each other's counts, and teardown() sees none of them. So both sides add to one counter,
// with opposite signs, and a threshold judges the sum.
//   acknowledged_minus_stored: users add what was acknowledged, teardown takes off what the database holds. Over
//   zero: an acknowledged event is lost.
//   stored_minus_sent: users take off what may be stored, teardown adds what the database holds. Over zero: the
//   database holds events that nobody sent, for example one event twice.
export const acknowledgedMinusStored = new Counter('acknowledged_minus_stored');
export const storedMinusSent = new Counter('stored_minus_sent');
