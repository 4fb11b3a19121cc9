package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Identity is who asks.
type Identity struct {
	Name string `json:"name"`
	Role Role   `json:"-"`
}

// loginFor is how long a login holds.
const loginFor = 12 * time.Hour

// logins knows who is logged in by signed cookies; it keeps no sessions.
type logins struct {
	key []byte

	mu sync.Mutex
	// once is the secret of the link that was printed; it is good for one login.
	once string
}

func newLogins() *logins {
	return &logins{key: secret(), once: base64.RawURLEncoding.EncodeToString(secret())}
}

func secret() []byte {
	b := make([]byte, 32)
	rand.Read(b)
	return b
}

// redeem spends the link's secret.
func (l *logins) redeem(token string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.once == "" || subtle.ConstantTimeCompare([]byte(token), []byte(l.once)) != 1 {
		return false
	}
	l.once = ""
	return true
}

// seal returns the cookie's value: name, role and end, signed.
func (l *logins) seal(who Identity, until time.Time) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(who.Name)) + "." + who.Role.String() + "." +
		strconv.FormatInt(until.Unix(), 10)
	return text + "." + l.sign(text)
}

func (l *logins) sign(text string) string {
	mac := hmac.New(sha256.New, l.key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// open returns who a cookie is of.
func (l *logins) open(value string, now time.Time) (who Identity, ok bool) {
	cut := strings.LastIndexByte(value, '.')
	if cut < 0 || !hmac.Equal([]byte(value[cut+1:]), []byte(l.sign(value[:cut]))) {
		return who, false
	}
	f := strings.Split(value[:cut], ".")
	if len(f) != 3 {
		return who, false
	}
	name, err := base64.RawURLEncoding.DecodeString(f[0])
	until, err2 := strconv.ParseInt(f[2], 10, 64)
	if err != nil || err2 != nil || now.Unix() >= until {
		return who, false
	}
	who.Name = string(name)
	for _, role := range []Role{Viewer, Operator} {
		if role.String() == f[1] {
			who.Role = role
		}
	}
	return who, who.Role > Nobody
}

const cookieName = "sluice"

// identify returns who sends a request; the error is the answer to somebody who is not logged in.
func (c *Console) identify(r *http.Request) (Identity, error) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if who, ok := c.logins.open(cookie.Value, time.Now()); ok {
			return who, fromHere(r)
		}
	}
	return Identity{}, problem{http.StatusUnauthorized, "not_logged_in", "you are not logged in",
		"open the link that the program printed when it started"}
}

// fromHere refuses a cookie that changes something and does not say which page sent it. Browsers send one of both
// headers with every form; http.CrossOriginProtection takes requests without, which is right for programs alone.
func fromHere(r *http.Request) error {
	if safe(r) || r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" {
		return nil
	}
	return problem{http.StatusForbidden, "no_origin",
		"this request has a cookie and says neither Sec-Fetch-Site nor Origin",
		"send it from a page of the console, or with a token"}
}

// login exchanges the secret of the printed link for a cookie.
func (c *Console) login(w http.ResponseWriter, r *request) {
	if !c.logins.redeem(r.form.Get("t")) {
		c.refuse(w, r, problem{http.StatusForbidden, "wrong_link", "this link was used already, or is not of this process",
			"restart the process for another one"})
		return
	}
	who := Identity{Name: "link", Role: Operator}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: c.logins.seal(who, time.Now().Add(loginFor)), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(loginFor / time.Second)})
	http.Redirect(w, r.Request, "./", http.StatusSeeOther)
}

func (c *Console) logout(w http.ResponseWriter, r *request) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: -1,
	})
	http.Redirect(w, r.Request, "./login", http.StatusSeeOther)
}
