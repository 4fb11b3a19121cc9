package console

import (
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// serveConsole serves a console until the test ends, with a client that keeps cookies and follows no redirects.
func serveConsole(t *testing.T, cfg Config, src Sources) (*Console, *httptest.Server, *http.Client) {
	t.Helper()
	c, err := New(cfg, src, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(c.Handler())
	t.Cleanup(server.Close)
	jar, _ := cookiejar.New(nil)
	return c, server, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

func TestLoginLinkWorksOnce(t *testing.T) {
	c, server, client := serveConsole(t, DefaultConfig(), Sources{})
	status := func(r *http.Response, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	if got := status(client.Get(server.URL + "/")); got != http.StatusSeeOther {
		t.Errorf("a page without a login: %d, want 303", got)
	}
	if got := status(client.Get(server.URL + "/v1/overview")); got != http.StatusUnauthorized {
		t.Errorf("JSON without a login: %d, want 401", got)
	}
	_, secret, _ := strings.Cut(c.LoginLink(server.Listener.Addr()), "#t=")
	if got := status(client.PostForm(server.URL+"/login", url.Values{"t": {"another"}})); got != http.StatusForbidden {
		t.Errorf("a wrong secret: %d, want 403", got)
	}
	if got := status(client.PostForm(server.URL+"/login", url.Values{"t": {secret}})); got != http.StatusSeeOther {
		t.Errorf("the link: %d, want 303", got)
	}
	if got := status(client.Get(server.URL + "/")); got != http.StatusOK {
		t.Errorf("a page after the login: %d, want 200", got)
	}
	if got := status(client.PostForm(server.URL+"/login", url.Values{"t": {secret}})); got != http.StatusForbidden {
		t.Errorf("the link for a second time: %d, want 403", got)
	}
}
