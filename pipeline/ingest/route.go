package ingest

import (
	"bytes"
	"io"
	"net"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/ingest/body"
)

// route is what a path stands for.
type route struct {
	service service
	shape   *shape
	call    segmentCall // which one all events sent here are; "" where they say so themselves
}

// service is what a path does with requests.
type service uint8

const (
	takesEvents service = iota
	takesStream
	answersHealth // to load balancers, which see only this port
	answersFlags  // to PostHog's clients, which ask for feature flags when they start
	ignores       // what clients report about themselves
)

// routes by path, without a slash at the end.
var routes = func() map[string]route {
	m := map[string]route{
		"/healthz":        {service: answersHealth, shape: &native},
		"/v1/events":      {shape: &native},
		"/v1/stream":      {service: takesStream, shape: &native},
		"/v1/cloudevents": {shape: &cloudevents},
	}
	for path, call := range segmentPaths {
		m[path] = route{shape: &segment, call: call}
	}
	for _, path := range jitsuPaths {
		for _, call := range []segmentCall{callTrack, callIdentify, callPage, callScreen, callGroup, callAlias} {
			m[path+string(call)] = route{shape: &segment, call: call}
		}
		m[path+"batch"] = route{shape: &segment}
	}
	m[segmentStatistics] = route{service: ignores, shape: &segment}
	for _, path := range posthogPaths {
		m[path] = route{shape: &posthog}
	}
	for _, path := range posthogFlags {
		m[path] = route{service: answersFlags, shape: &posthog}
	}
	return m
}()

// exchange is a request and its answer, and whose.
type exchange struct {
	*fasthttp.RequestCtx
	shape *shape
}

// route sends a request to where its path says.
func (s *Server) route(request *fasthttp.RequestCtx) {
	if s.cors(request) {
		return
	}
	to, ok := routes[string(bytes.TrimSuffix(request.Path(), []byte("/")))]
	if !ok {
		problem(exchange{request, &native}, 404, "not-found", "there is nothing here; events go to POST /v1/events", -1)
		return
	}
	ctx := exchange{request, to.shape}
	switch {
	case !bytes.HasPrefix(request.Request.Header.Protocol(), []byte("HTTP/1.")):
		ctx.SetConnectionClose()
		problem(ctx, 505, "http-version", "this server speaks HTTP/1.1 and 1.0", -1)
	case ctx.shape == &cloudevents && ctx.IsOptions() && len(ctx.Request.Header.Peek("WebHook-Request-Origin")) > 0:
		// The sender asks whether it may send (CloudEvents webhooks, section 4); anyone with a write key may.
		ctx.Response.Header.Set("Allow", "POST")
		ctx.Response.Header.SetBytesV("WebHook-Allowed-Origin", ctx.Request.Header.Peek("WebHook-Request-Origin"))
		ctx.Response.Header.Set("WebHook-Allowed-Rate", "*")
	case to.service == answersHealth && (s.leaving.Load() || s.draining.Load()):
		s.unavailable(ctx, pipeline.ErrClosed)
	case to.service == answersHealth:
		ctx.Response.Header.SetContentType("application/json")
		ctx.Response.SetBodyString(`{"status":"ok"}`)
	case to.service == answersFlags:
		ctx.Response.Header.SetContentType("application/json")
		ctx.Response.SetBodyString(noFlags)
	case !ctx.IsPost():
		ctx.Response.Header.Set("Allow", "POST")
		problem(ctx, 405, "method-not-allowed", "events are sent by POST", -1)
	case to.service == ignores:
		ctx.SetStatusCode(204)
	case s.draining.Load():
		s.unavailable(ctx, pipeline.ErrClosed)
	case s.inFlight.Load() > int64(s.cfg.Concurrency):
		s.crowded(ctx)
	case to.service == takesStream:
		s.stream(ctx)
	default:
		s.events(ctx, to)
	}
	if status := ctx.Response.StatusCode(); ctx.shape.holds && (status == 429 || status >= 500) {
		// The connection ends without an answer: the client then keeps the events, where it would drop them on any status.
		ctx.HijackSetNoResponse(true)
		ctx.Hijack(func(net.Conn) {})
	}
}

// expect answers a client that asks whether it may send a body (Expect: 100-continue): not where its length says that
// it is too long.
func (s *Server) expect(request *fasthttp.RequestCtx) int {
	to := routes[string(bytes.TrimSuffix(request.Path(), []byte("/")))]
	length := request.Request.Header.ContentLength()
	if to.shape == nil || to.service == takesStream || length <= s.cfg.MaxBodyBytes {
		return 100
	}
	s.fail(exchange{request, to.shape}, s.bodies.TooLong(length))
	s.metrics.request(request.Response.StatusCode(), 0)
	return request.Response.StatusCode()
}

// discard reads the rest of a body that was answered early, since a connection that is closed on unread bytes is reset,
// and the answer is lost. It costs no memory, ends with the read timeout, and reads no more than a body may be long.
func (s *Server) discard(ctx *fasthttp.RequestCtx) {
	stream := body.Stream(ctx)
	if stream == nil || ctx.Response.StatusCode() < 400 {
		return
	}
	n, err := io.CopyN(io.Discard, stream, int64(s.cfg.MaxBodyBytes))
	if err == nil && n > 0 || err != nil && err != io.EOF {
		ctx.SetConnectionClose()
	}
}

// mediaType reports whether a Content-Type is known, and whether it is NDJSON. A body without one is taken for JSON;
// browsers' beacons are text/plain.
func mediaType(t []byte) (lines, ok bool) {
	if string(t) == "application/json" { // nearly always
		return false, true
	}
	kind, params, _ := bytes.Cut(t, []byte(";"))
	if params = bytes.ToLower(params); bytes.Contains(params, []byte("charset")) {
		_, charset, _ := bytes.Cut(params, []byte("charset="))
		charset, _, _ = bytes.Cut(charset, []byte(";"))
		switch string(bytes.Trim(charset, ` "`)) {
		case "utf-8", "utf8", "us-ascii":
		default:
			return false, false
		}
	}
	switch string(bytes.ToLower(bytes.TrimSpace(kind))) {
	case "", "application/json", "text/json", "text/plain":
		return false, true
	case "application/x-ndjson", "application/ndjson",
		"application/jsonl", "application/x-jsonlines", "application/jsonlines":
		return true, true
	}
	return false, false
}

// preferences reads what a request prefers (RFC 7240): respond-async, an answer before its events are stored; any-age,
// rules that look at its events however old they are.
func preferences(h *fasthttp.RequestHeader) (async, anyAge bool) {
	if len(h.Peek("Prefer")) == 0 {
		return false, false
	}
	for _, line := range h.PeekAll("Prefer") {
		for _, p := range bytes.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ';' }) {
			p = bytes.TrimSpace(p)
			async = async || bytes.EqualFold(p, []byte("respond-async"))
			anyAge = anyAge || bytes.EqualFold(p, []byte("any-age"))
		}
	}
	return async, anyAge
}
