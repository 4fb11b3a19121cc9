package console

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// policy lets a page run its own scripts from its own files and nothing else, and forbids every way from text to
// markup: what an event holds can be shown and never run.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard checks what holds for every request: the Host, and that no page of another origin sends it.
func (c *Console) guard(next http.Handler) http.Handler {
	known := c.cfg.hosts()
	origins := http.NewCrossOriginProtection()
	if c.cfg.Origin != "" {
		if err := origins.AddTrustedOrigin(c.cfg.Origin); err != nil {
			panic(err) // which validate has looked at
		}
	}
	next = origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		// With no-referrer browsers would send "Origin: null" with the console's own forms.
		h.Set("Referrer-Policy", "same-origin")
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

// hosts returns the names and addresses that are this console's, beside loopback.
func (cfg Config) hosts() []string {
	known := slices.Clone(cfg.Hosts)
	if at, err := url.Parse(cfg.Origin); err == nil && at.Host != "" {
		known = append(known, at.Hostname())
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if ip, _ := netip.ParseAddr(host); err == nil && host != "" && !ip.IsUnspecified() {
		known = append(known, host)
	}
	return known
}

// safe is true for requests that change nothing.
func safe(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

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
