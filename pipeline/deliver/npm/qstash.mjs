// Reads {base, token, publish: {...}, verify: [{signature, body, url}], consume: [{headers, body, url}],
// keys: [current, next]} from stdin: publishes with the official client, verifies what QStash's stand-in sent with the
// official Receiver, and works on it as a consumer.
import { readFileSync } from "node:fs";
import { Client, Receiver } from "@upstash/qstash";

const { base, token, publish, verify, consume, keys } = JSON.parse(readFileSync(0, "utf8"));
const out = { published: [], verified: [] };
const client = new Client({ baseUrl: base, token, retry: false });
for (const p of publish ?? []) {
  try {
    out.published.push(await client.publishJSON(p));
  } catch (e) {
    out.published.push({ error: `${e.name}: ${e.message}` });
  }
}
const receiver = new Receiver({ currentSigningKey: keys[0], nextSigningKey: keys[1] });
for (const v of verify ?? []) {
  try {
    out.verified.push(String(await receiver.verify(v)));
  } catch (e) {
    out.verified.push(`${e.name}: ${e.message}`);
  }
}
// A consumer: once the Receiver has taken a request, its event is worked on if its id is new, and routed by aggregate.
const done = new Map();
for (const { headers, body, url } of consume ?? []) {
  await receiver.verify({ signature: headers["upstash-signature"], body, url });
  const event = JSON.parse(body);
  if (event.id !== headers["x-event-id"]) throw new Error(`x-event-id is ${headers["x-event-id"]}, not ${event.id}`);
  if (!done.has(event.id)) done.set(event.id, `${event.tenantId} ${event.type} ${event.aggregateType} ${event.aggregateId}`);
}
out.worked = [...done.values()];
console.log(JSON.stringify(out));
