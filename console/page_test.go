package console

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// browser asks one console as somebody who is logged in.
type browser struct {
	t      *testing.T
	client *http.Client
	url    string
}

// as returns a browser of somebody with a role, at a console that is served until the test ends.
func as(t *testing.T, role Role, cfg Config, src Sources) browser {
	t.Helper()
	c, server, client := serveConsole(t, cfg, src)
	return logIn(t, c, server, client, role)
}

func logIn(t *testing.T, c *Console, server *httptest.Server, client *http.Client, role Role) browser {
	t.Helper()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	who := Identity{Name: "ann", Role: role}
	client.Jar.SetCookies(at, []*http.Cookie{c.cookie(c.cookies.seal(who, time.Now().Add(time.Hour)), 0)})
	return browser{t, client, server.URL}
}

// onDatabase returns a browser of an operator, at a console on a database.
func onDatabase(t *testing.T, pool *pgxpool.Pool) browser {
	t.Helper()
	return as(t, Operator, DefaultConfig(), Sources{DB: pool})
}

// get returns the page at a path, which has to answer 200.
func (b browser) get(path string) string {
	b.t.Helper()
	status, body := b.ask(path)
	if status != http.StatusOK {
		b.t.Fatalf("GET %s: %d\n%s", path, status, body)
	}
	return body
}

// json reads the answer at a path of the API into a model.
func (b browser) json(path string, into any) {
	b.t.Helper()
	if err := json.Unmarshal([]byte(b.get(path)), into); err != nil {
		b.t.Fatalf("GET %s: %v", path, err)
	}
}

// ask returns status and body of a GET.
func (b browser) ask(path string) (int, string) {
	b.t.Helper()
	r, err := b.client.Get(b.url + path)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.read(r)
}

// post sends a form, as a page of this console does, and returns the status and the body, or where it leads to.
func (b browser) post(path string, form url.Values) (int, string) {
	b.t.Helper()
	req, err := http.NewRequest(http.MethodPost, b.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	r, err := b.client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	if to := r.Header.Get("Location"); to != "" {
		r.Body.Close()
		return r.StatusCode, to
	}
	return b.read(r)
}

func (b browser) read(r *http.Response) (int, string) {
	b.t.Helper()
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// wants reports each text that a page lacks.
func wants(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page lacks %q:\n%s", text, page)
		}
	}
}
