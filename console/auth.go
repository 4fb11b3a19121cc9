package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/operate/logins"
)

// Identity is who asks.
type Identity struct {
	Name string `json:"name"`
	Role Role   `json:"-"`
}

// loginFor is how long a login holds.
const loginFor = 12 * time.Hour

// cookieName returns the name of the cookie. With the prefix browsers take it only over HTTPS, and of this host alone.
func (cfg Config) cookieName() string {
	if cfg.secure() {
		return "__Host-sluice"
	}
	return "sluice"
}

func (cfg Config) secure() bool { return strings.HasPrefix(cfg.Origin, "https://") }

// identify returns who sends a request; the error is the answer to somebody who is not logged in. A token goes before
// a cookie, and a wrong one counts.
func (c *Console) identify(r *http.Request) (Identity, error) {
	who, sent, ok := c.access.bearer(r)
	if ok {
		return who, nil
	}
	if cookie, err := r.Cookie(c.cfg.cookieName()); err == nil && !sent {
		if who, ok := c.cookies.who(r.Context(), cookie.Value); ok {
			return who, fromHere(r)
		}
	}
	if who, ok := c.proxied(r); ok && !sent {
		return who, fromHere(r)
	}
	return Identity{}, problem{http.StatusUnauthorized, "not_logged_in", "you are not logged in",
		"open the link that the program printed when it started, or one of \"pipeline console link\""}
}

// proxies returns the networks whose header names who asks.
func (cfg Config) proxies() (all []netip.Prefix, err error) {
	if (cfg.ProxyHeader == "") != (len(cfg.ProxyNetworks) == 0) {
		return nil, errors.New("console.proxy-header and console.proxy-networks: set both or none")
	}
	for _, text := range cfg.ProxyNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("console.proxy-networks: %w", err)
		}
		all = append(all, network.Masked())
	}
	return all, nil
}

// proxied returns whom a proxy says it has logged in. A header from elsewhere, or more than one of them, says nothing.
func (c *Console) proxied(r *http.Request) (who Identity, ok bool) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	names := r.Header.Values(c.cfg.ProxyHeader)
	if err != nil || c.cfg.ProxyHeader == "" || len(names) != 1 || names[0] == "" || len(names[0]) > 100 ||
		!slices.ContainsFunc(c.proxies, func(n netip.Prefix) bool { return n.Contains(from.Addr().Unmap()) }) {
		return who, false
	}
	if who = (Identity{names[0], Viewer}); slices.Contains(c.cfg.ProxyOperators, who.Name) {
		who.Role = Operator
	}
	return who, true
}

// fromHere refuses what a browser adds by itself, a cookie or a proxy's header, where it changes something and does not
// say which page sent it. Browsers send one of both
// headers with every form; http.CrossOriginProtection takes requests without, which is right for programs alone.
func fromHere(r *http.Request) error {
	if safe(r) || r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "" {
		return nil
	}
	return problem{http.StatusForbidden, "no_origin",
		"this request is a browser's and says neither Sec-Fetch-Site nor Origin",
		"send it from a page of the console, or with a token"}
}

// login exchanges a name and its password, or the secret of a link, for a cookie.
func (c *Console) login(w http.ResponseWriter, r *request) {
	who, err := c.admit(r)
	if err != nil {
		c.log.Warn("console: a login failed", "address", r.RemoteAddr, "name", r.form.Get("name"), "error", err)
		c.refuse(w, r, err)
		return
	}
	c.log.Info("console: login", "address", r.RemoteAddr, "name", who.Name, "role", who.Role.String())
	// The key may have been renewed on another node.
	c.cookies.refresh(r.Context(), 0)
	http.SetCookie(w, c.cookie(c.cookies.seal(who, time.Now().Add(loginFor)), int(loginFor/time.Second)))
	http.Redirect(w, r.Request, "./", http.StatusSeeOther)
}

func (c *Console) admit(r *request) (who Identity, err error) {
	succeeded, err := c.access.failed.try(r.RemoteAddr, time.Now())
	if err != nil {
		return who, err
	}
	if r.form.Get("t") == "" && r.form.Get("name") != "" {
		who, err = c.access.password(r.Context(), r.form.Get("name"), r.form.Get("password"))
	} else {
		who, err = c.redeem(r.Context(), r.form.Get("t"))
	}
	if err == nil {
		succeeded()
	}
	return who, err
}

// cookie is the login's, for so many seconds; a negative number ends it.
func (c *Console) cookie(value string, seconds int) *http.Cookie {
	return &http.Cookie{Name: c.cfg.cookieName(), Value: value, Path: "/", HttpOnly: true, Secure: c.cfg.secure(),
		SameSite: http.SameSiteStrictMode, MaxAge: seconds}
}

// redeem uses up a link: the one of this process, or one that a command made.
func (c *Console) redeem(ctx context.Context, secret string) (who Identity, err error) {
	if c.cookies.redeem(secret) {
		return Identity{Name: "link", Role: Operator}, nil
	}
	err = logins.ErrNoLink
	if c.src.DB != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var role string
		if who.Name, role, err = logins.Spend(ctx, c.src.DB, secret); err == nil {
			who.Role, _ = roleOf(role) // the table takes no other
			return who, nil
		}
	}
	var pgErr *pgconn.PgError
	switch {
	case errors.Is(err, logins.ErrNoLink):
		err = problem{http.StatusForbidden, "wrong_link", err.Error(), "\"pipeline console link\" prints another one"}
	case errors.As(err, &pgErr) && pgErr.Code == "25006":
		err = problem{http.StatusServiceUnavailable, "read_only", "this database is read-only: no link can be used up in it",
			"open the link that this process printed when it started, or log in at a node on the primary"}
	}
	return Identity{}, err
}

func (c *Console) logout(w http.ResponseWriter, r *request) {
	http.SetCookie(w, c.cookie("", -1))
	http.Redirect(w, r.Request, "./login", http.StatusSeeOther)
}
