// Sends one of each call and COUNT tracks through @segment/analytics-next in a page, unchanged but for its host.
import { taken, failed, until } from './page.mjs'

const { HOST, KEY, COUNT } = process.env
const { AnalyticsBrowser } = await import('@segment/analytics-next')
const analytics = AnalyticsBrowser.load({ writeKey: KEY, cdnSettings: { integrations: { 'Segment.io': {
  apiKey: KEY, apiHost: `${new URL(HOST).host}/v1`, protocol: 'http' } } } })
await analytics.page('Home')
await analytics.identify('u1', { plan: 'gold' })
await analytics.group('g1')
await analytics.alias('u2')
await analytics.screen('Start')
for (let i = 0; i < Number(COUNT); i++) await analytics.track('counted', { i })
await until(() => taken.length >= Number(COUNT) + 5)
console.log(JSON.stringify({ failed }))
process.exit(0)
