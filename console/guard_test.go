package console

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// caller is somebody who asks: the header that says who it is, and the role that this has to give.
type caller struct {
	name, header, value string
	role                Role
}

// callers returns one of each kind that knocks at a console, those with cookies of its own first.
func callers(c *Console) []caller {
	now := time.Now()
	cookie := func(name, value string, role Role) caller {
		return caller{name, "Cookie", DefaultConfig().cookieName() + "=" + value, role}
	}
	viewer := c.cookies.seal(Identity{"ann", Viewer}, now.Add(time.Hour))
	operator := c.cookies.seal(Identity{"ann", Operator}, now.Add(time.Hour))
	unsigned, _, _ := strings.Cut(operator, ".")
	return []caller{
		{"nobody", "X-None", "1", Nobody},
		cookie("viewer", viewer, Viewer),
		cookie("operator", operator, Operator),
		cookie("expired", c.cookies.seal(Identity{"ann", Operator}, now.Add(-time.Second)), Nobody),
		cookie("of another key", newCookies(nil, nil).seal(Identity{"ann", Operator}, now.Add(time.Hour)), Nobody),
		cookie("of a viewer, tampered with", strings.Replace(viewer, ".viewer.", ".operator.", 1), Nobody),
		cookie("of another name", "Ym9i"+operator[4:], Nobody),
		cookie("without a signature", unsigned, Nobody),
		cookie("with a part more", "x."+operator, Nobody),
		{"none but a token", "Authorization", "Bearer " + programToken, tokenRole(c)},
		{"none but a wrong token", "Authorization", "Bearer x" + programToken, Nobody},
		cookie("of no role", c.cookies.seal(Identity{"ann", Nobody}, now.Add(time.Hour)), Nobody),
	}
}

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// paths returns the paths of a row, with a number for each part that varies.
func (row route) paths() []string {
	var all []string
	for _, path := range []string{row.page, row.api} {
		if path != "" {
			all = append(all, placeholder.ReplaceAllString(path, "1"))
		}
	}
	return all
}

// knock sends a request as a page of the console itself sends it, and returns the answer with up to 64 KiB of its body.
func knock(t *testing.T, client *http.Client, method, at string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i+1] == "" {
			req.Header.Del(headers[i])
		}
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	r, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, at, err)
	}
	defer r.Body.Close()
	if r.StatusCode < 300 {
		return r, "" // it may be a stream
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return r, string(body)
}

// letIn is false where the guard refused, whatever a handler answers.
func letIn(r *http.Response, body string) bool {
	var answer struct{ Error problem }
	_ = json.Unmarshal([]byte(body), &answer) // pages are none
	login := strings.HasSuffix(r.Header.Get("Location"), "login") && r.Request.Method == http.MethodGet
	return r.StatusCode != http.StatusUnauthorized && !login && answer.Error.Code != "forbidden" &&
		!strings.Contains(body, "this is for the role")
}

// TestEveryRouteByEveryRole: each row of the table lets in whom its role says, and what is no row is not found.
func TestEveryRouteByEveryRole(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Users = usersFile(t)
	c, _, client := serveConsole(t, cfg, Sources{})
	client.Jar = nil
	// A page and an action for operators, whatever else there is.
	c.routes = append(c.routes, route{method: "GET", api: "/v1/for-operators", role: Operator, handle: none},
		route{method: "POST", page: "/act", role: Operator, audited: true, handle: none})
	server := httptest.NewServer(c.Handler())
	defer server.Close()
	rows := map[string]route{}
	for _, row := range c.routes {
		for _, path := range row.paths() {
			rows[row.method+" "+path] = row
		}
		if row.method != http.MethodGet && row.method != http.MethodPost || row.audited && row.method != http.MethodPost {
			t.Errorf("%s %s%s: what changes something is a POST, and all else a GET", row.method, row.page, row.api)
		}
		if row.audited && row.role < Operator {
			t.Errorf("%s %s%s changes something, and is for a %s", row.method, row.page, row.api, row.role)
		}
	}
	for _, row := range c.routes {
		for _, path := range row.paths() {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				for _, who := range callers(c) {
					r, body := knock(t, client, method, server.URL+path, who.header, who.value)
					want, known := rows[method+" "+path]
					switch in := letIn(r, body); {
					case known && in != (who.role >= want.role):
						t.Errorf("%s %s, cookie %s: let in %v (%d), and it is for %s", method, path, who.name, in,
							r.StatusCode, want.role)
					case !known && who.role > Nobody && r.StatusCode != http.StatusNotFound:
						t.Errorf("%s %s, cookie %s: %d, and it is not in the table", method, path, who.name, r.StatusCode)
					case !known && who.role == Nobody && in:
						t.Errorf("%s %s, cookie %s: %d without a login", method, path, who.name, r.StatusCode)
					}
				}
			}
		}
	}
}

// TestEveryAnswerIsGuarded: the headers that keep a page safe are on every answer, on errors too.
func TestEveryAnswerIsGuarded(t *testing.T) {
	c, server, client := serveConsole(t, DefaultConfig(), Sources{})
	client.Jar = nil
	operator := callers(c)[2]
	want := map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	}
	check := func(r *http.Response) {
		t.Helper()
		for name, value := range want {
			if got := r.Header.Values(name); len(got) != 1 || got[0] != value {
				t.Errorf("%s %s (%d): %s is %q", r.Request.Method, r.Request.URL, r.StatusCode, name, got)
			}
		}
		cached := strings.HasPrefix(r.Request.URL.Path, "/"+c.assets.prefix) && r.StatusCode == 200
		if got := r.Header.Get("Cache-Control"); cached != (got != "no-store") {
			t.Errorf("%s %s (%d): Cache-Control is %q", r.Request.Method, r.Request.URL, r.StatusCode, got)
		}
	}
	paths := []string{"/nothing", "//", "/static/", "/static/none.js", "/" + c.assets.prefix + "console.js", "/v1/none"}
	for _, row := range c.routes {
		paths = append(paths, row.paths()...)
	}
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} {
			for _, who := range callers(c)[:3] {
				r, _ := knock(t, client, method, server.URL+path, who.header, who.value)
				check(r)
			}
		}
	}
	r, _ := knock(t, client, "GET", server.URL+"/", operator.header, operator.value, "Host", "evil.example")
	check(r)
	r, _ = knock(t, client, "POST", server.URL+"/logout", operator.header, operator.value, "Sec-Fetch-Site", "cross-site")
	check(r)
	for _, policy := range strings.Split(policy, ";") {
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("the policy says %s", policy)
		}
	}
}

// TestHosts: a name that leads to the console's address by somebody else's will is not one of its own.
func TestHosts(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Hosts = []string{"console.example"}
	_, server, client := serveConsole(t, cfg, Sources{})
	for host, want := range map[string]int{
		"localhost": 200, "localhost:9091": 200, "LOCALHOST:1": 200, "127.0.0.1": 200, "127.0.0.1:80": 200,
		"127.9.9.9": 200, "[::1]": 200, "[::1]:9091": 200, "console.example": 200, "Console.Example:8443": 200,

		"localhost.evil.com": 421, "localhost.evil.com:9091": 421, "evil.com": 421, "evil.com:127": 421, "localhost.": 421,
		"127.0.0.1.": 421, "127.0.0.1.evil.com": 421, "console.example.": 421, "xconsole.example": 421,
		"console.example.evil.com": 421, "0.0.0.0": 421, "[::]:9091": 421, "[::2]": 421, "10.0.0.1": 421,
		"localhost:1:2": 421,
		"2130706433":    421, "127.1": 421, "0x7f.0.0.1": 421,
	} {
		if r, _ := knock(t, client, "GET", server.URL+"/login", "Host", host); r.StatusCode != want {
			t.Errorf("Host %s: %d, want %d", host, r.StatusCode, want)
		}
	}
	cfg.Listen = "0.0.0.0:0"
	if known := cfg.hosts(); strings.Join(known, " ") != "console.example" {
		t.Errorf("an unspecified address makes names known: %v", known)
	}
}

// TestOrigins: a page of another origin changes nothing, and neither does a cookie without a word of where it is from.
func TestOrigins(t *testing.T) {
	c, server, client := serveConsole(t, DefaultConfig(), Sources{})
	client.Jar = nil
	operator := callers(c)[2]
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		site, origin string
		want         int
	}{
		{"same-origin", "", 303},
		{"same-origin", server.URL, 303},
		{"none", "", 303}, // typed by hand
		{"", server.URL, 303},
		{"cross-site", "", 403},
		{"cross-site", server.URL, 403},
		{"same-site", server.URL, 403}, // another port is another program
		{"", "https://evil.example", 403},
		{"", "http://localhost:1", 403},
		{"", "http://" + at.Hostname(), 403},
		{"", "null", 403},
		{"", "", 403}, // as a page over plain HTTP that was rebound, or a program that has somebody's cookie
	} {
		r, body := knock(t, client, "POST", server.URL+"/logout", operator.header, operator.value,
			"Sec-Fetch-Site", try.site, "Origin", try.origin)
		if r.StatusCode != try.want {
			t.Errorf("Sec-Fetch-Site %q, Origin %q: %d, want %d\n%s", try.site, try.origin, r.StatusCode, try.want, body)
		}
	}
}

// TestCookie: scripts can't read the cookie, and no other site's link sends it.
func TestCookie(t *testing.T) {
	c, server, client := serveConsole(t, DefaultConfig(), Sources{})
	_, secret, _ := strings.Cut(c.LoginLink(server.Listener.Addr()), "#t=")
	r, err := client.PostForm(server.URL+"/login", url.Values{"t": {secret}})
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	cookies := r.Cookies()
	if len(cookies) != 1 {
		t.Fatalf("the login sets %v", cookies)
	}
	k := cookies[0]
	if k.Name != "sluice" || !k.HttpOnly || k.SameSite != http.SameSiteStrictMode || k.Domain != "" || k.Path != "/" ||
		k.Secure || k.MaxAge != 12*60*60 {
		t.Errorf("the cookie is %s", k.Raw)
	}
	if who, ok := c.cookies.open(k.Value, time.Now().Add(loginFor+time.Minute)); ok {
		t.Errorf("%s is still logged in after %s", who.Name, loginFor)
	}
}
