package deliver_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"sluice.example/sluice/internal/pgtest"
)

// Whatever a receiver answers, its message's result is recorded and its neighbours' too: NUL, invalid UTF-8, 50 MB, a
// redirect to where cloud machines keep their secrets, an answer that is cut or is not HTTP.
func TestHostileAnswersAreRecorded(t *testing.T) {
	const size = 50 << 20
	answers := map[string]http.HandlerFunc{
		"nul": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); io.WriteString(w, "a\x00b") },
		"utf8": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			io.WriteString(w,
				"a\xff\xfe\xc3(b")
		},
		"big": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); writeBytes(w, size) },
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://169.254.169.254/latest/meta-data/")
			w.WriteHeader(307)
		},
		"header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", strings.Repeat("9", 4000))
			w.WriteHeader(503)
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "short")
			panic(http.ErrAbortHandler)
		},
		"nohttp": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				io.WriteString(conn, "\x00\x16\x03\xffgarbage\r\n\r\n")
				conn.Close()
			}
		},
		"bigok": func(w http.ResponseWriter, _ *http.Request) { writeBytes(w, size) },
		"good":  func(http.ResponseWriter, *http.Request) {},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for kind, answer := range answers {
			if strings.Contains(string(body), fmt.Sprintf("%q", kind)) {
				answer(w, r)
			}
		}
	}))
	t.Cleanup(s.Close)
	pool := pgtest.New(t)
	for kind := range answers {
		exec(t, pool, `insert into outbox (tenant_id, type, dedupe_key, destination, payload)
			values (1, $1, $1, 'crm', jsonb_build_object('kind', $1::text))`, kind)
	}
	node(t, pool, hook(t, s.URL))
	until(t, pool, len(answers), `select count(*) from outbox where attempts = 1 and lease_token is null
		and status in ('failed', 'sent', 'dead')`)
	rows, err := pool.Query(t.Context(), `select type, status, coalesce(last_error, '') from outbox`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var kind, status, reason string
		if err := rows.Scan(&kind, &status, &reason); err != nil {
			t.Fatal(err)
		}
		want := "failed"
		if kind == "good" || kind == "bigok" {
			want = "sent"
		}
		if kind == "redirect" {
			want = "dead"
		}
		if status != want || (status == "sent") == (reason != "") || len(reason) > 1000 || !utf8.ValidString(reason) {
			t.Errorf("%s: %s, %q; want %s, with a reason if it failed", kind, status, reason, want)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func writeBytes(w io.Writer, n int) {
	for chunk := make([]byte, 1<<16); n > 0; n -= len(chunk) {
		if _, err := w.Write(chunk); err != nil {
			return // nobody reads on
		}
	}
}
