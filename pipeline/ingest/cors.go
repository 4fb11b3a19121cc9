package ingest

import (
	"slices"

	"github.com/valyala/fasthttp"
)

// What a preflight that names no headers of its own allows.
const allowedHeaders = "Authorization, Content-Type, Content-Encoding, Prefer, X-Write-Key"

// cors lets web pages of other origins send events and read the answers. It reports whether the request was a
// preflight, which it has answered.
//
// Browsers send beacons with credentials and do not send one whose preflight allows none, so an origin that is listed
// may use them; with * none are allowed. No cookie means anything here. A preflight may ask for any header: tracing
// libraries add theirs to all requests of a page, and no header gives access to more than a write key does.
func (s *Server) cors(ctx *fasthttp.RequestCtx) bool {
	if len(s.cfg.CORSOrigins) == 0 {
		return false
	}
	h := &ctx.Response.Header
	h.Add("Vary", "Origin")
	origin := string(ctx.Request.Header.Peek("Origin"))
	switch {
	case origin == "":
		return false
	case slices.Contains(s.cfg.CORSOrigins, origin) && origin != "*":
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
	case slices.Contains(s.cfg.CORSOrigins, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	default:
		return false
	}
	if !ctx.IsOptions() || len(ctx.Request.Header.Peek("Access-Control-Request-Method")) == 0 {
		h.Set("Access-Control-Expose-Headers", "Retry-After, Preference-Applied")
		return false
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", "POST")
	h.Set("Access-Control-Allow-Headers", allowedHeaders)
	if asked := ctx.Request.Header.Peek("Access-Control-Request-Headers"); areTokens(asked) {
		h.SetBytesV("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", "86400")
	ctx.SetStatusCode(204)
	return true
}

// areTokens reports whether a header's value is a list of names (RFC 9110, 5.6.2).
func areTokens(list []byte) bool {
	for _, c := range list {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '_', c == '.', c == '!', c == '~', c == ',', c == ' ', c == '\t':
		default:
			return false
		}
	}
	return len(list) > 0
}
