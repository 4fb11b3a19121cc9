package inbox

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// failed checks that err is an ErrUnverified (or any error, for constructors) whose text names why, and no secret.
func failed(t *testing.T, err error, why string, secrets ...string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Fatalf("error = %v; want one that says %q", err, why)
	}
	for _, s := range secrets {
		if s = strings.TrimSpace(s); len(s) > 4 && strings.Contains(err.Error(), s) {
			t.Fatalf("error %q shows the secret", err)
		}
	}
}

func unverifiedBecause(t *testing.T, err error, why string, secrets ...string) {
	t.Helper()
	failed(t, err, why, secrets...)
	if !errors.Is(err, ErrUnverified) {
		t.Fatalf("error %q is not an ErrUnverified", err)
	}
}

func clock(seconds int64) func() time.Time {
	return func() time.Time { return time.Unix(seconds, 0) }
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestMiddleware(t *testing.T) {
	v, err := NewXSignature("It's a Secret to Everybody")
	if err != nil {
		t.Fatal(err)
	}
	const good = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	var got []string
	h := Middleware(v, 13, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.ContentLength != int64(len(body)) {
			t.Errorf("handler reads %d bytes, %v; ContentLength %d", len(body), err, r.ContentLength)
		}
		got = append(got, string(body))
	}))
	srv := httptest.NewServer(h)
	defer srv.Close()
	post := func(body io.Reader, signature string, status int, want string) {
		t.Helper()
		req, err := http.NewRequest("POST", srv.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Signature", signature)
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status || !strings.Contains(string(text), want) {
			t.Fatalf("answer %d %q; want %d and %q", resp.StatusCode, text, status, want)
		}
	}
	post(strings.NewReader("Hello, World!"), good, 200, "")
	post(strings.NewReader("Hello, World?"), good, 401, "X-Signature does not fit")
	post(strings.NewReader("Hello, World!!"), good, 413, "13 bytes")
	chunked := io.MultiReader(strings.NewReader("Hello, World!"), bytes.NewReader(make([]byte, 1<<20)))
	post(chunked, good, 413, "13 bytes")
	if len(got) != 1 || got[0] != "Hello, World!" {
		t.Fatalf("the handler was called with %q; want the one genuine body", got)
	}

	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", iotest.ErrReader(io.ErrUnexpectedEOF)))
	if w.Code != 400 {
		t.Fatalf("a body that broke off was answered %d; want 400", w.Code)
	}
}
