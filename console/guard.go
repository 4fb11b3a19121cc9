package console

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// policy lets a page run its own scripts from its own files and nothing else, and forbids every way from text to
// markup: what an event holds can be shown and never run.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard checks what holds for every request: the Host, and that no page of another origin sends it.
func (c *Console) guard(next http.Handler) http.Handler {
	known := slices.Clone(c.cfg.Hosts)
	if host, _, err := net.SplitHostPort(c.cfg.Listen); err == nil && host != "" {
		known = append(known, host)
	}
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !hostKnown(r.Host, known) {
			http.Error(w, "this Host is not known; add it to console.hosts", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostKnown takes the names and addresses of loopback, and known names.
func hostKnown(host string, known []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return true
	}
	return host == "localhost" ||
		slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, host) })
}
