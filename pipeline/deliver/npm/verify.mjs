// Reads {requests: [{headers, body}], ...} from stdin and says, for each request and each verifier, whether it is taken.
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";
import Stripe from "stripe";

const { requests, secrets, stripeSecrets } = JSON.parse(readFileSync(0, "utf8"));
const attempt = (f) => {
  try {
    f();
    return "taken";
  } catch (e) {
    return `refused: ${e.message}`;
  }
};
console.log(
  JSON.stringify(
    requests.map(({ headers, body }) => ({
      standardwebhooks: secrets.map((s) => attempt(() => new Webhook(s).verify(body, headers))),
      stripe: stripeSecrets.map((s) => attempt(() => Stripe.webhooks.constructEvent(body, headers["stripe-signature"], s))),
    })),
  ),
);
