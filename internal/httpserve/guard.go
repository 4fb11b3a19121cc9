package httpserve

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Guard keeps web pages away from a handler that asks for no password. A page of any site can have its visitor's
// browser send requests to private addresses, and by a DNS name of its own that changes its address (rebinding) read
// the answers. Guard therefore takes requests whose Host is an address, a name of loopback, the host of listen or one
// of names, and no request that a browser marks as sent by a page of another origin, unless its user follows a link.
// Paths in open are for everybody: probes have names that nobody foresees.
func Guard(h http.Handler, listen string, names []string, open ...string) http.Handler {
	known := slices.Clone(names)
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		known = append(known, host)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case slices.Contains(open, r.URL.Path):
		case !hostKnown(r.Host, known):
			http.Error(w, "this Host is not known; add it to admin.hosts", http.StatusForbidden)
			return
		case foreign(r):
			http.Error(w, "pages of other origins may not ask here", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostKnown takes addresses, since no DNS name is behind them; no Host at all is of HTTP/1.0, which no browser sends.
func hostKnown(host string, known []string) bool {
	if host == "" {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, host) })
}

// foreign reports whether a page of another origin sent a request.
func foreign(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return true
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}
