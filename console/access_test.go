package console

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	password     = "correct horse"
	programToken = "a token of a program"
)

// usersFile writes a file with ann, an operator, and a viewer's token.
func usersFile(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(programToken))
	return writeUsers(t, fmt.Sprintf("users:\n  - {name: ann, role: operator, password: %q}\n"+
		"tokens:\n  - {name: deploy, role: viewer, hash: \"sha256:%s\"}\n", hash, hex.EncodeToString(sum[:])))
}

func writeUsers(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "users.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// tokenRole is the role of the token where a console has the users file.
func tokenRole(c *Console) Role {
	if c.cfg.Users == "" {
		return Nobody
	}
	return Viewer
}

// TestPasswords: a name and its password log in, by the file's role; after five failures an address waits.
func TestPasswords(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Users = usersFile(t)
	c, server, client := serveConsole(t, cfg, Sources{})
	login := func(name, password string) (int, []*http.Cookie) {
		t.Helper()
		r, err := client.PostForm(server.URL+"/login", url.Values{"name": {name}, "password": {password}})
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode, r.Cookies()
	}
	for range mostFailures + 2 { // those that succeed do not count
		status, cookies := login("ann", password)
		if status != http.StatusSeeOther || len(cookies) != 1 {
			t.Fatalf("the right password: %d, %v", status, cookies)
		}
		if who, ok := c.cookies.open(cookies[0].Value, time.Now()); !ok || who != (Identity{"ann", Operator}) {
			t.Errorf("the cookie is of %+v, %v", who, ok)
		}
	}
	for i, try := range [][2]string{{"ann", "wrong"}, {"ann", ""}, {"bob", password}, {"Ann", password},
		{"deploy", programToken}} {
		if status, cookies := login(try[0], try[1]); status != http.StatusForbidden || len(cookies) > 0 {
			t.Errorf("login %d by %q: %d, %v", i, try, status, cookies)
		}
	}
	if status, _ := login("ann", password); status != http.StatusTooManyRequests {
		t.Errorf("after %d failures: %d, want 429", mostFailures, status)
	}
	if _, err := c.access.failed.try("198.51.100.1:5", time.Now()); err != nil {
		t.Errorf("another address: %v", err)
	}
	if _, err := c.access.failed.try("127.0.0.1:5", time.Now().Add(time.Minute)); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// TestFailuresAreBounded: however many addresses fail, they take so much memory, and the last ones are refused too.
func TestFailuresAreBounded(t *testing.T) {
	var f failures
	now := time.Now()
	refused := 0
	for i := range 3 * mostAddresses {
		if _, err := f.try(fmt.Sprintf("[2001:db8:%x::1]:5", i), now); err != nil {
			refused++
		}
	}
	if len(f.from) > mostAddresses+1 || refused < mostAddresses {
		t.Errorf("%d addresses are kept, %d logins refused", len(f.from), refused)
	}
	if network("[2001:db8::1]:5") != network("[2001:db8::2%eth0]:6") ||
		network("[::ffff:10.0.0.1]:5") != network("10.0.0.1:6") {
		t.Error("one network counts as two")
	}
}

// TestToken: a program with a token needs neither a cookie nor an origin, and is held to its role.
func TestToken(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Users = usersFile(t)
	c, server, client := serveConsole(t, cfg, Sources{})
	client.Jar = nil
	for value, want := range map[string]int{
		"Bearer " + programToken: 200, "bearer " + programToken: 200, "Bearer " + programToken + "x": 401,
		"Basic " + programToken: 401, programToken: 401, "Bearer": 401,
	} {
		r, body := knock(t, client, "GET", server.URL+"/v1/capabilities", "Authorization", value, "Sec-Fetch-Site", "")
		if r.StatusCode != want {
			t.Errorf("Authorization %q: %d, want %d\n%s", value, r.StatusCode, want, body)
		}
	}
	// A cookie does not help a wrong token.
	operator := callers(c)[2]
	r, _ := knock(t, client, "GET", server.URL+"/v1/capabilities", operator.header, operator.value,
		"Authorization", "Bearer wrong")
	if r.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong token beside a cookie: %d", r.StatusCode)
	}
	if r, body := knock(t, client, "POST", server.URL+"/v1/jobs", "Authorization", "Bearer "+programToken,
		"Sec-Fetch-Site", ""); r.StatusCode != http.StatusForbidden || !strings.Contains(body, `"forbidden"`) {
		t.Errorf("an action by a viewer's token: %d\n%s", r.StatusCode, body)
	}
}

// TestOriginOfAProxy: a proxy that rewrites Host is known by the origin of pages, and gets a cookie for HTTPS alone.
func TestOriginOfAProxy(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Origin = "https://console.example"
	c, server, client := serveConsole(t, cfg, Sources{})
	client.Jar = nil
	link := c.LoginLink(server.Listener.Addr())
	secret, ok := strings.CutPrefix(link, "https://console.example/login#t=")
	if !ok {
		t.Errorf("the link is %s", link)
	}
	r, err := client.PostForm(server.URL+"/login", url.Values{"t": {secret}})
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	cookies := r.Cookies()
	if len(cookies) != 1 || cookies[0].Name != "__Host-sluice" || !cookies[0].Secure || !cookies[0].HttpOnly ||
		cookies[0].Path != "/" || cookies[0].Domain != "" {
		t.Fatalf("the cookie is %v", cookies)
	}
	cookie := cookies[0].Name + "=" + cookies[0].Value
	for origin, want := range map[string]int{cfg.Origin: 303, "http://console.example": 403, "https://evil.example": 403} {
		r, _ := knock(t, client, "POST", server.URL+"/logout", "Cookie", cookie, "Sec-Fetch-Site", "", "Origin", origin)
		if r.StatusCode != want {
			t.Errorf("Origin %s: %d, want %d", origin, r.StatusCode, want)
		}
	}
	if r, _ := knock(t, client, "GET", server.URL+"/", "Cookie", cookie, "Host", "console.example"); r.StatusCode != 200 {
		t.Errorf("the proxy's own Host: %d", r.StatusCode)
	}
	for _, bad := range []string{"console.example", "https://console.example/", "ftp://x", "https://", "https://a b"} {
		cfg.Origin = bad
		if err := cfg.validate(); err == nil || !strings.Contains(err.Error(), "console.origin") {
			t.Errorf("console.origin %q: %v", bad, err)
		}
	}
}

// TestUsersFile: what is wrong with a users file is said with its place, and no secret is shown.
func TestUsersFile(t *testing.T) {
	for text, want := range map[string]string{
		"users: [{name: ann, role: operator, password: hunter2}]": "expected a hash",
		"users: [{name: ann, role: boss, password: x}]":           "role",
		"users: [{name: ann, role: viewer}]":                      "password",
		"tokens: [{name: ann, role: viewer, hash: hunter2}]":      "expected a hash",
		"users: []":  "neither users nor tokens",
		"people: []": "people",
	} {
		_, err := loadAccess(writeUsers(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	hash, err := HashPassword(password)
	if err != nil || bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		t.Errorf("the hash %q: %v", hash, err)
	}
	for _, bad := range []string{"", "short", strings.Repeat("x", 73)} {
		if _, err := HashPassword(bad); err == nil {
			t.Errorf("a password of %d bytes is taken", len(bad))
		}
	}
	cfg := DefaultConfig()
	if cfg.Listen = "0.0.0.0:0"; cfg.validate() == nil {
		t.Error("an address that is not loopback needs no users")
	}
	if cfg.Users = usersFile(t); cfg.validate() != nil {
		t.Error(cfg.validate())
	}
}

// TestProxyHeader: a proxy in its network names who asks, and nobody else does.
func TestProxyHeader(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ProxyHeader, cfg.ProxyNetworks, cfg.ProxyOperators = "X-Forwarded-User", []string{"127.0.0.0/8"}, []string{"ann"}
	_, near, client := serveConsole(t, cfg, Sources{})
	cfg.ProxyNetworks = []string{"10.0.0.0/8"}
	_, far, _ := serveConsole(t, cfg, Sources{})
	client.Jar = nil
	for _, try := range []struct {
		server, header, name string
		want                 int
	}{
		{near.URL, "X-Forwarded-User", "ann", 200}, {near.URL, "X-Forwarded-User", "", 401},
		{near.URL, "X-Forwarded-User", strings.Repeat("x", 101), 401}, {near.URL, "X-Other", "ann", 401},
		{far.URL, "X-Forwarded-User", "ann", 401},
	} {
		r, _ := knock(t, client, "GET", try.server+"/v1/capabilities", try.header, try.name)
		if r.StatusCode != try.want {
			t.Errorf("%s: %s: %d, want %d", try.header, try.name, r.StatusCode, try.want)
		}
	}
	act := near.URL + "/v1/jobs"
	if r, body := knock(t, client, "POST", act, "X-Forwarded-User", "bob"); !strings.Contains(body, `"forbidden"`) {
		t.Errorf("a viewer acts: %d\n%s", r.StatusCode, body)
	}
	if r, body := knock(t, client, "POST", act, "X-Forwarded-User", "ann"); !letIn(r, body) {
		t.Errorf("an operator may not act: %d\n%s", r.StatusCode, body)
	}
	if _, body := knock(t, client, "POST", act, "X-Forwarded-User", "ann", "Sec-Fetch-Site", ""); !strings.Contains(body,
		"no_origin") {
		t.Errorf("a change without an origin: %s", body)
	}
	cfg.ProxyNetworks = nil
	if _, err := cfg.proxies(); err == nil {
		t.Error("a header without networks is taken")
	}
	if cfg.ProxyNetworks = []string{"10.0.0.0"}; cfg.ProxyHeader == "" {
		t.Fatal("no header")
	}
	if _, err := cfg.proxies(); err == nil {
		t.Error("an address is taken for a network")
	}
}
