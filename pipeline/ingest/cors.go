package ingest

import (
	"slices"

	"github.com/valyala/fasthttp"
)

// cors lets web pages of other origins send events and read the answers. Write keys are not cookies, so credentials
// are never allowed. It reports whether the request was a preflight, which it has answered.
func (s *Server) cors(ctx *fasthttp.RequestCtx) bool {
	if len(s.cfg.CORSOrigins) == 0 {
		return false
	}
	h := &ctx.Response.Header
	h.Add("Vary", "Origin")
	origin := string(ctx.Request.Header.Peek("Origin"))
	everyone := slices.Contains(s.cfg.CORSOrigins, "*")
	if origin == "" || !everyone && !slices.Contains(s.cfg.CORSOrigins, origin) {
		return false
	}
	if everyone {
		origin = "*"
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if !ctx.IsOptions() || len(ctx.Request.Header.Peek("Access-Control-Request-Method")) == 0 {
		h.Set("Access-Control-Expose-Headers", "Retry-After, Preference-Applied")
		return false
	}
	h.Set("Access-Control-Allow-Methods", "POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Content-Encoding, Prefer, X-Write-Key")
	h.Set("Access-Control-Max-Age", "86400")
	ctx.SetStatusCode(204)
	return true
}
