package console

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/doctor"
	"sluice.example/sluice/pipeline/claim"
)

//go:embed pages
var pageFiles embed.FS

// pages are the templates by name, each with the layout and the parts around it.
type pages map[string]*template.Template

// loadPages parses pages/NAME.html together with layout.html and parts.html.
func loadPages() (pages, error) {
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		return nil, err
	}
	all := pages{}
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		t := template.New("layout.html").Funcs(funcs)
		if all[name], err = t.ParseFS(pageFiles, "pages/layout.html", "pages/parts.html", file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// view is what the layout shows around a model.
type view struct {
	Title string
	// Page is the template's name, which the navigation marks.
	Page string
	// Root is the relative way to the console's root, with a slash at the end.
	Root, Assets      string
	Name, Colour      string
	Version, ReadOnly string
	Who               Identity
	At                time.Time
	Nav               []navItem
	Model             any
}

type navItem struct {
	Path, Title, Page, Key string
}

// Operator is true where the page may offer actions and payloads.
func (v view) Operator() bool { return v.Who.Role >= Operator }

// May is true where the page may offer actions.
func (v view) May() bool { return v.Operator() && v.ReadOnly == "" }

// answer writes a model as JSON or as its page.
func (c *Console) answer(w http.ResponseWriter, r *request, row route, model any) {
	if m, ok := model.(moved); ok {
		if !r.wantsJSON() {
			http.Redirect(w, r.Request, r.root()+strings.TrimPrefix(m.to, "/"), http.StatusSeeOther)
			return
		}
		model = m.answer
	}
	if r.wantsJSON() || row.template == "" {
		writeJSON(w, http.StatusOK, model)
		return
	}
	c.render(w, r, http.StatusOK, row.template, row.title, model)
}

func writeJSON(w http.ResponseWriter, status int, model any) {
	text, err := json.Marshal(model) // escapes <, > and &
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"no JSON"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // nobody is there to be told
}

// render writes a page. It is made in memory first, so that a page is whole or an error.
func (c *Console) render(w http.ResponseWriter, r *request, status int, name, title string, model any) {
	v := view{Title: title, Page: name, Root: r.root(), Assets: c.assets.prefix, Name: c.cfg.Name, Colour: c.cfg.Colour,
		Version: c.src.Version, ReadOnly: c.readOnly(), Who: r.who, At: time.Now().UTC(), Model: model}
	if r.who.Role > Nobody {
		for _, row := range c.routes {
			if row.key != 0 {
				v.Nav = append(v.Nav, navItem{strings.TrimPrefix(row.page, "/"), row.title, row.template, string(row.key)})
			}
		}
	}
	var page bytes.Buffer
	if err := c.pages[name].Execute(&page, v); err != nil {
		c.log.Error("console: a page can't be made", "page", name, "error", err)
		http.Error(w, "this page can't be made; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes()) // nobody is there to be told
}

// problem is an error with an answer of its own.
type problem struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Error is the text of the answer.
func (p problem) Error() string { return p.Message }

// refuse writes an error, as JSON or as a page.
func (c *Console) refuse(w http.ResponseWriter, r *request, err error) {
	p := asProblem(err)
	if p.Status >= 500 {
		c.log.Warn("console", "path", r.URL.Path, "error", err)
	}
	if p.Status == http.StatusUnauthorized && safe(r.Request) && !r.wantsJSON() {
		http.Redirect(w, r.Request, r.root()+"login", http.StatusSeeOther)
		return
	}
	if r.wantsJSON() {
		writeJSON(w, p.Status, map[string]problem{"error": p})
		return
	}
	c.render(w, r, p.Status, "problem", http.StatusText(p.Status), p)
}

func asProblem(err error) problem {
	var p problem
	var tooBig *http.MaxBytesError
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &p):
	case errors.As(err, &pgErr) && pgErr.Code == "25006":
		p = problem{http.StatusServiceUnavailable, "read_only", "the database is read-only", ""}
	case errors.As(err, &tooBig):
		p = problem{http.StatusRequestEntityTooLarge, "too_large", "the form is too large", ""}
	case errors.Is(err, errNoDatabase):
		p = problem{http.StatusServiceUnavailable, "database_away", err.Error(),
			"the overview shows what this process knows by itself"}
	case errors.Is(err, context.DeadlineExceeded):
		p = problem{http.StatusServiceUnavailable, "database_away", "PostgreSQL does not answer",
			"the overview shows what this process knows by itself"}
	default:
		p = problem{http.StatusServiceUnavailable, "failed", err.Error(), ""}
	}
	return p
}

// funcs are what templates may call. None of them returns markup.
var funcs = template.FuncMap{
	"visible": cli.Visible,
	// segment is a name as one part of a path, whatever slashes it has.
	"segment":  url.PathEscape,
	"rulepage": doctor.RulePage,
	"number":   number,
	"bytes": func(n any) (string, error) {
		switch n := n.(type) {
		case int:
			return formatBytes(n), nil
		case int64:
			return formatBytes(n), nil
		}
		return "", fmt.Errorf("bytes of %T", n)
	},
	"rfc3339": func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") },
	"clock":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"ago":     func(t time.Time) string { return length(time.Since(t)) },
	"length":  length,
	"capped":  capped,
	"text":    func(v json.RawMessage) string { return string(v) },
	"pair":    func(first, second any) pair { return pair{first, second} },
	"sub":     func(a int, b int64) int64 { return int64(a) - b },
	"bar":     func(i int) int { return 10*i + 1 },
	"seconds": func(s float64) string { return length(time.Duration(s * float64(time.Second))) },
	"json": func(v any) (string, error) {
		text, err := json.MarshalIndent(v, "", "  ")
		return string(text), err
	},
}

// number writes a whole number with separators between thousands, and "-" where there is none.
func number(v any) string {
	var text string
	switch n := v.(type) {
	case int:
		text = strconv.Itoa(n)
	case int32:
		text = strconv.Itoa(int(n))
	case int64:
		text = strconv.FormatInt(n, 10)
	case *int64:
		if n == nil {
			return "-"
		}
		text = strconv.FormatInt(*n, 10)
	case *float64:
		return number(*n)
	case float64:
		if n != n {
			return "-"
		}
		if n > -10 && n < 10 && n != float64(int64(n)) {
			return strconv.FormatFloat(n, 'f', 1, 64)
		}
		text = strconv.FormatFloat(n, 'f', 0, 64)
	default:
		return fmt.Sprint(v)
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// capped writes a count that ends at claim.CountedUpTo.
func capped(n int64) string {
	if n >= claim.CountedUpTo {
		return number(int64(claim.CountedUpTo-1)) + "+"
	}
	return number(n)
}

// pair is two things for one part of a page.
type pair struct{ First, Second any }

// length writes how long something took or takes, in at most two units.
func length(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + length(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d m %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d m", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %02d h", int(d.Hours())/24, int(d.Hours())%24)
}

// formatBytes writes a size in the largest binary unit that leaves a number of at least 1.
func formatBytes[N int | int64](n N) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for f >= 1024 && len(units) > 1 {
		f, units = f/1024, units[1:]
	}
	digits := 1
	if units[0] == "B" {
		digits = 0
	}
	return strconv.FormatFloat(f, 'f', digits, 64) + " " + units[0]
}
