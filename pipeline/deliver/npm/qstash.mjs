// Reads {base, token, publish: {...}, verify: [{signature, body, url}], keys: [current, next]} from stdin: publishes with
// the official client, and verifies what QStash's stand-in sent with the official Receiver.
import { readFileSync } from "node:fs";
import { Client, Receiver } from "@upstash/qstash";

const { base, token, publish, verify, keys } = JSON.parse(readFileSync(0, "utf8"));
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
console.log(JSON.stringify(out));
