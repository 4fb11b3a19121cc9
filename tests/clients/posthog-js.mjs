// Sends COUNT captures through posthog-js in a page, unchanged but for its host. LIBRARY names the version: up to some
// of 1.2xx it says by offset how long ago an event was; later ones send timestamp and sent_at by their own clock.
import { taken, failed, until } from './page.mjs'

const { HOST, KEY, COUNT, LIBRARY } = process.env
const module = await import(LIBRARY)
const posthog = module.posthog ?? module.default.posthog
posthog.init(KEY, {
  api_host: HOST, autocapture: false, capture_pageview: false, capture_pageleave: false, disable_session_recording: true,
  advanced_disable_decide: true, advanced_disable_flags: true, disable_external_dependency_loading: true,
  disable_compression: true, opt_out_useragent_filter: true, request_queue_config: { flush_interval_ms: 250 },
})
for (let i = 0; i < Number(COUNT); i++) posthog.capture('counted', { i })
const events = () => taken.flatMap((body) => body.batch ?? body).filter((e) => e.event === 'counted')
await until(() => events().length >= Number(COUNT))
console.log(JSON.stringify({ failed, offsets: events().filter((e) => 'offset' in e && !('timestamp' in e)).length }))
process.exit(0)
