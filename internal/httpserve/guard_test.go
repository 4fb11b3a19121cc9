package httpserve

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestGuard(t *testing.T) {
	h := Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }),
		"admin.internal:9090", []string{"sluice"}, "/healthz")
	for _, c := range []struct {
		host, path string
		header     []string
		want       int
	}{
		{"127.0.0.1:9090", "/v1/books", nil, 200},
		{"[::1]:9090", "/v1/books", nil, 200},
		{"10.0.0.7:9090", "/metrics", nil, 200},
		{"localhost:9090", "/v1/books", nil, 200},
		{"LOCALHOST.", "/v1/books", nil, 200},
		{"admin.internal:9090", "/metrics", nil, 200},
		{"sluice:9090", "/metrics", nil, 200},
		{"", "/metrics", nil, 200},
		{"rebound.example:9090", "/v1/books", nil, 403},
		{"rebound.example:9090", "/debug/pprof/heap", nil, 403},
		{"127.0.0.1.rebound.example", "/metrics", nil, 403},
		{"localhost.rebound.example", "/metrics", nil, 403},
		{"rebound.example", "/healthz", nil, 200},
		{"localhost:9090", "/v1/books", []string{"Origin", "http://localhost:9090"}, 200},
		{"localhost:9090", "/v1/books", []string{"Origin", "https://shop.example"}, 403},
		{"localhost:9090", "/v1/books", []string{"Origin", "null"}, 403},
		{"localhost:9090", "/v1/books", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"localhost:9090", "/v1/books", []string{"Sec-Fetch-Site", "none"}, 200},
		{"localhost:9090", "/v1/books", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"localhost:9090", "/v1/books", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"localhost:9090", "/v1/books", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "iframe"}, 403},
		{"localhost:9090", "/v1/books", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate",
			"Sec-Fetch-Dest", "document"}, 200},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("Host %q, %s, %q: %d; want %d", c.host, c.path, c.header, w.Code, c.want)
		}
	}
}
