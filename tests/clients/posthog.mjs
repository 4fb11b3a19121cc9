// Sends an identify, an alias and COUNT captures through posthog-node, unchanged but for its host and shorter pauses
// between its retries, and prints how many errors it saw.
import { PostHog } from 'posthog-node'

const { HOST, KEY, COUNT } = process.env
const posthog = new PostHog(KEY, { host: HOST, flushAt: 50, flushInterval: 200, fetchRetryDelay: 200, disableGeoip: true })

let errors = 0
posthog.on('error', (e) => { errors++; console.error(String(e)) })

const timestamp = new Date()
posthog.identify({ distinctId: 'u1', properties: { email: 'a@example.com' } })
posthog.alias({ distinctId: 'u1', alias: 'a1' })
posthog.capture({ distinctId: 'u1', event: 'order_paid', timestamp, properties: { cents: 4900, title: 'Ü 😀 "q" \\u0000', $current_url: 'https://shop.example.com/pay', $session_id: 's1' } })
for (let i = 0; i < Number(COUNT); i++) posthog.capture({ distinctId: `u${i}`, event: 'counted', timestamp, properties: { i } })

// An application lives on, and the SDK flushes on a timer; only what a shutdown cannot send is lost.
for (let i = 0; i < 20; i++) {
  try {
    await posthog.flush()
    break
  } catch {
    await new Promise((done) => setTimeout(done, 200))
  }
}
await posthog.shutdown(120_000)
console.log(JSON.stringify({ errors }))
