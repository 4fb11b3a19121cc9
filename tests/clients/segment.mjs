// Sends one of each call and COUNT tracks through @segment/analytics-node, unchanged but for its host, and prints what
// the SDK took for delivered and for failed.
import { Analytics } from '@segment/analytics-node'

const { HOST, KEY, COUNT } = process.env
const analytics = new Analytics({ writeKey: KEY, host: HOST, flushAt: 15, flushInterval: 200 })

let failed = 0
analytics.on('error', (e) => { failed++; console.error(e.code, String(e.reason)) })

let delivered = 0
const sent = []
const call = (method, message) => sent.push(new Promise((done) => analytics[method](message, (err) => { if (!err) delivered++; done() })))

const timestamp = new Date()
call('identify', { userId: 'u1', traits: { email: 'a@example.com' }, timestamp })
call('track', { userId: 'u1', anonymousId: 'a1', event: 'Order Paid', timestamp, properties: { cents: 4900, big: '12345678901234567890', title: 'Ü 😀 "q" \\u0000' },
  context: { userAgent: 'browser/1', page: { url: 'https://shop.example.com/pay', referrer: 'https://example.org/' } } })
call('page', { anonymousId: 'a1', name: 'Home', category: 'Shop', timestamp, properties: { url: 'https://shop.example.com/' } })
call('screen', { anonymousId: 'a1', name: 'Start', timestamp })
call('group', { userId: 'u1', groupId: 'g1', timestamp, traits: { plan: 'gold' } })
call('alias', { userId: 'u1', previousId: 'a1', timestamp })
for (let i = 0; i < Number(COUNT); i++) call('track', { userId: `u${i}`, event: 'Counted', messageId: `counted-${i}`, timestamp, properties: { i } })

await analytics.closeAndFlush({ timeout: 120_000 })
await Promise.all(sent)
console.log(JSON.stringify({ delivered, failed }))
