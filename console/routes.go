package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Role is what somebody may do: Viewer sees counts, states and ids; Operator also sees payloads and acts.
type Role int

// The roles, the lesser first. Nobody is who is not logged in.
const (
	Nobody Role = iota
	Viewer
	Operator
)

// String returns the name that files and pages use.
func (r Role) String() string { return [...]string{"nobody", "viewer", "operator"}[r] }

// roleOf returns the role of a name; there is none of nobody.
func roleOf(name string) (Role, bool) {
	for _, role := range []Role{Viewer, Operator} {
		if role.String() == name {
			return role, true
		}
	}
	return Nobody, false
}

// route is a row of the only table of what can be asked for. What is not in it is not found, whoever asks.
type route struct {
	method string
	// page and api are the paths of the page and of its JSON; one of them may be empty.
	page, api string
	// role is the least that may ask.
	role Role
	// audited is true for what changes something; the handler writes it into the audit with the change.
	audited bool
	// template is the file in pages/ without .html.
	template string
	title    string
	// key is the second letter of the keyboard's "g o", for pages in the navigation; 0 is for none.
	key rune
	// handle returns the model of the page and of the JSON.
	handle func(ctx context.Context, r *request) (any, error)
	// raw answers by itself, as streams do.
	raw func(w http.ResponseWriter, r *request)
}

// request is what a handler sees of who asks, and for what.
type request struct {
	*http.Request
	who Identity
	// form is the query of a GET, the body of a POST.
	form url.Values
}

// table is the route table. Everything that changes something is a POST.
func (c *Console) table() []route {
	return []route{
		{method: "GET", page: "/login", role: Nobody, template: "login", title: "Log in",
			handle: c.loginForm},
		{method: "POST", page: "/login", role: Nobody, raw: c.login},
		{method: "POST", page: "/logout", role: Viewer, raw: c.logout},
		{method: "GET", api: "/v1/capabilities", role: Viewer, handle: c.capabilities},
		{method: "GET", page: "/", api: "/v1/overview", role: Viewer, template: "overview", title: "Overview", key: 'o',
			handle: c.overview},
		{method: "GET", page: "/messages", api: "/v1/messages", role: Viewer, template: "messages", title: "Messages",
			key: 'm', handle: c.messages},
		{method: "GET", page: "/messages/{id}", api: "/v1/messages/{id}", role: Viewer, template: "message",
			title: "Message", handle: c.message},
		{method: "GET", page: "/events/{id}", api: "/v1/events/{id}", role: Viewer, template: "trace", title: "Event",
			handle: c.trace},
		{method: "GET", page: "/search", api: "/v1/search", role: Viewer, template: "search", title: "Search",
			handle: c.search},
		{method: "GET", page: "/destinations", api: "/v1/destinations", role: Viewer, template: "destinations",
			title: "Destinations", key: 'd', handle: c.destinations},
		{method: "GET", page: "/destinations/{name}", api: "/v1/destinations/{name}", role: Viewer, template: "destination",
			title: "Destination", handle: c.destination},
		{method: "GET", page: "/rules", api: "/v1/rules", role: Viewer, template: "rules", title: "Rules", key: 'r',
			handle: c.rules},
		{method: "GET", page: "/rules/{id...}", api: "/v1/rules/{id...}", role: Viewer, template: "rule", title: "Rule",
			handle: c.rule},
		{method: "GET", page: "/nodes", api: "/v1/nodes", role: Viewer, template: "nodes", title: "Nodes", key: 'n',
			handle: c.nodes},
		{method: "POST", page: "/messages/{id}/{action}", api: "/v1/messages/{id}/{action}", role: Operator, audited: true,
			handle: c.changeMessage},
		{method: "POST", page: "/plans", api: "/v1/plans", role: Operator, template: "plan", title: "Plan",
			handle: c.plan},
		{method: "POST", page: "/jobs", api: "/v1/jobs", role: Operator, audited: true, handle: c.startJob},
		{method: "GET", page: "/jobs", api: "/v1/jobs", role: Viewer, template: "jobs", title: "Jobs", key: 'j',
			handle: c.jobs},
		{method: "GET", page: "/jobs/{id}", api: "/v1/jobs/{id}", role: Viewer, template: "job", title: "Job",
			handle: c.job},
		{method: "POST", page: "/jobs/{id}/{action}", api: "/v1/jobs/{id}/{action}", role: Operator, audited: true,
			handle: c.steerJob},
		{method: "POST", page: "/destinations/{name}/{action}", api: "/v1/destinations/{name}/{action}", role: Operator,
			audited: true, handle: c.steerDestination},
		{method: "GET", page: "/settings", api: "/v1/settings", role: Viewer, template: "settings", title: "Settings",
			key: 's', handle: c.settings},
		{method: "POST", page: "/settings", api: "/v1/settings", role: Operator, audited: true, handle: c.tune},
		{method: "POST", page: "/settings/unset", api: "/v1/settings/unset", role: Operator, audited: true,
			handle: c.untune},
		{method: "GET", page: "/audit", api: "/v1/audit", role: Viewer, template: "audit", title: "Audit", key: 'a',
			handle: c.audit},
		{method: "GET", page: "/quarantine", api: "/v1/quarantine", role: Viewer, template: "quarantine",
			title: "Quarantine", key: 'q', handle: c.quarantine},
		{method: "GET", page: "/quarantine/{id}", api: "/v1/quarantine/{id}", role: Viewer, template: "quarantined",
			title: "Event in quarantine", handle: c.quarantinedEvent},
	}
}

// loginForm is true where names and passwords are configured.
func (c *Console) loginForm(context.Context, *request) (any, error) {
	return len(c.access.users) > 0, nil
}

func none(context.Context, *request) (any, error) { return nil, nil }

// mux serves the table, and the files that pages need.
func (c *Console) mux() http.Handler {
	mux := http.NewServeMux()
	for _, row := range c.routes {
		for _, path := range []string{row.page, row.api} {
			if path == "" {
				continue
			}
			pattern := row.method + " " + path
			if path == "/" {
				pattern = row.method + " /{$}"
			}
			mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, row) })
		}
	}
	mux.Handle("GET /static/", c.assets)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		who, err := c.identify(r)
		if err != nil {
			c.refuse(w, &request{Request: r}, err)
			return
		}
		c.refuse(w, &request{Request: r, who: who}, problem{404, "not_found", "there is nothing at " + r.URL.Path, ""})
	})
	return mux
}

// serve answers one row of the table for whoever its role lets in.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, row route) {
	if safe(r) && row.raw == nil {
		// However many looks a page takes, it answers in this time.
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		r = r.WithContext(ctx)
	}
	q := &request{Request: r}
	who, err := c.identify(r)
	if safe(r) {
		q.form = r.URL.Query()
	}
	if err != nil && row.role > Nobody {
		c.refuse(w, q, err)
		return
	}
	q.who = who
	switch {
	case who.Role < row.role:
		c.refuse(w, q, problem{http.StatusForbidden, "forbidden", fmt.Sprintf("this is for the role %s; %s has the role %s",
			row.role, who.Name, who.Role), ""})
		return
	case row.audited && c.readOnly() != "":
		c.refuse(w, q, problem{http.StatusServiceUnavailable, "read_only", "this console is read-only", c.readOnly()})
		return
	}
	if !safe(r) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		if err := r.ParseForm(); err != nil {
			c.refuse(w, q, problem{http.StatusBadRequest, "bad_form", err.Error(), ""})
			return
		}
		q.form = r.PostForm
	}
	if row.raw != nil {
		row.raw(w, q)
		return
	}
	model, err := row.handle(r.Context(), q)
	if err != nil {
		c.refuse(w, q, err)
		return
	}
	c.answer(w, q, row, model)
}

// readOnly returns why nobody may change anything here, empty where somebody may.
func (c *Console) readOnly() string {
	switch {
	case c.cfg.ReadOnly:
		return "console.read-only is set"
	case !c.cookies.changes():
		return "the database is read-only"
	}
	return ""
}

// moved is the model of an action that leads to a page: browsers are sent there, programs get answer.
type moved struct {
	to     string
	answer any
}

// wantsJSON is true for the paths of the API, and for format=json on a page.
func (r *request) wantsJSON() bool {
	return strings.HasPrefix(r.URL.Path, "/v1/") || r.form.Get("format") == "json"
}

// root is the relative way from the page to the console's root, so that a proxy may serve it under any path.
func (r *request) root() string {
	if depth := strings.Count(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/"); depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}
