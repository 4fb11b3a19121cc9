package console

import (
	"context"
	"errors"
	"net/http"
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

const cookieName = "sluice"

// identify returns who sends a request; the error is the answer to somebody who is not logged in.
func (c *Console) identify(r *http.Request) (Identity, error) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if who, ok := c.cookies.who(r.Context(), cookie.Value); ok {
			return who, fromHere(r)
		}
	}
	return Identity{}, problem{http.StatusUnauthorized, "not_logged_in", "you are not logged in",
		"open the link that the program printed when it started, or one of \"pipeline console link\""}
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

// login exchanges the secret of a link for a cookie.
func (c *Console) login(w http.ResponseWriter, r *request) {
	who, err := c.redeem(r.Context(), r.form.Get("t"))
	if err != nil {
		c.refuse(w, r, err)
		return
	}
	// The key may have been renewed on another node.
	c.cookies.refresh(r.Context(), 0)
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: c.cookies.seal(who, time.Now().Add(loginFor)), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(loginFor / time.Second)})
	http.Redirect(w, r.Request, "./", http.StatusSeeOther)
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
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: -1,
	})
	http.Redirect(w, r.Request, "./login", http.StatusSeeOther)
}
