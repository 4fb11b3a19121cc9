// A page of https://shop.example.com for the libraries that run in browsers. Its requests go through jsdom's
// XMLHttpRequest, which asks by preflight and hides answers as browsers do. SHIFT is how many milliseconds its clock is
// fast.
import { JSDOM } from 'jsdom'

const shift = Number(process.env.SHIFT ?? 0)
if (shift) {
  const Real = Date
  globalThis.Date = class extends Real {
    constructor(...args) { args.length ? super(...args) : super(Real.now() + shift) }
    static now() { return Real.now() + shift }
  }
}

const { window } = new JSDOM('<!doctype html><title>Shop</title>', { url: 'https://shop.example.com/pay', pretendToBeVisual: true })
window.console = console
for (const name of ['document', 'location', 'history', 'localStorage', 'sessionStorage', 'navigator', 'XMLHttpRequest', 'Event', 'CustomEvent', 'screen']) {
  Object.defineProperty(globalThis, name, { value: window[name], configurable: true, writable: true })
}
globalThis.window = globalThis.self = window

// Bodies that were answered with success, and how many requests were not.
export const taken = []
export let failed = 0

globalThis.fetch = window.fetch = (url, { method = 'GET', headers = {}, body } = {}) => new Promise((answer, fail) => {
  const request = new window.XMLHttpRequest()
  request.open(method, url)
  for (const [name, value] of new Headers(headers)) request.setRequestHeader(name, value)
  if (process.env.TRACER) for (const name of ['sentry-trace', 'baggage', 'traceparent']) request.setRequestHeader(name, '1')
  request.onload = () => {
    if (request.status < 300 && body) taken.push(JSON.parse(body))
    else if (request.status >= 300) failed++
    answer(new Response(request.status === 204 ? null : request.responseText, { status: request.status }))
  }
  request.onerror = () => { failed++; fail(new TypeError('Failed to fetch')) }
  request.send(body)
})

// until waits for what a library does in the background.
export const until = async (done) => {
  for (const began = performance.now(); !done();) {
    if (performance.now() - began > 60_000) throw new Error('nothing more came of it in 60 s')
    await new Promise((again) => setTimeout(again, 20))
  }
}
