// Package console serves the operators' console: pages that show what happens and why, the same answers as JSON, and
// the actions of operators. It has a listener of its own, asks for a login on every address, and takes no part in the
// path of an event: without the role "console" nothing of it runs.
//
// A page is one row in the table of routes, one function that returns its model, and one template. The model is also
// the JSON answer. Pages are complete without JavaScript where they show no live data.
package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"sluice.example/sluice/internal/history"
	"sluice.example/sluice/internal/httpserve"
	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/operate/outbox"
	"sluice.example/sluice/pipeline/rules"
)

// Config is what an operator sets.
type Config struct {
	// Listen is the address, host:port.
	Listen string
	// Hosts are names by which browsers ask, beside the names of loopback and the host of Listen. A request with any
	// other Host is answered 421, so that no page can reach the console by a name of its own.
	Hosts []string
	// Origin is how browsers reach the console through a proxy, such as https://console.example.com; empty where there is
	// none. Over https the cookie is sent by it alone.
	Origin string
	// Users is a file of who may log in by name, and of tokens for programs; empty for links alone.
	Users string
	// ProxyHeader is where a proxy that logs people in writes their name, believed from ProxyNetworks alone;
	// ProxyOperators are the names that are operators, all others are viewers. Empty: none does.
	ProxyHeader                   string
	ProxyNetworks, ProxyOperators []string
	// Name is the environment, shown on every page and in its title, such as prod-eu.
	Name string
	// Colour marks the environment: grey, green, blue, amber or red.
	Colour string
	// ReadOnly takes all actions away.
	ReadOnly bool
	// Payloads and ViewerPayloads are what operators and viewers see of events, payloads and headers: hidden, masked or
	// shown.
	Payloads, ViewerPayloads string
	// Mask are the fields whose values nobody sees where payloads are masked. A path of names joined by dots is that of
	// every field whose own path ends so; case, "_", "-" and "$" do not count.
	Mask []string
}

// DefaultConfig returns the console on loopback, next to the admin address. Its paths of masked fields are a guess at
// what people and secrets are told by.
func DefaultConfig() Config {
	return Config{Listen: "127.0.0.1:9091", Colour: "grey", Payloads: payloadsMasked, ViewerPayloads: payloadsHidden,
		Mask: []string{"address", "api_key", "authorization", "cookie", "email", "first_name", "ip", "last_name", "password",
			"phone", "secret", "token", "access_token", "refresh_token", "user_agent"}}
}

// Series are the metrics whose history the console shows.
var Series = []string{"sluice_ingest_received_events_total", "sluice_copyin_stored_events_total",
	"sluice_copyin_duplicate_events_total", "sluice_ingest_refused_events_total", "sluice_ingest_rejected_events_total",
	"sluice_buffer_wait_seconds", "sluice_deliver_attempts_total", "sluice_claim_due_messages"}

// Sources are what the console shows. Funcs and pointers are nil where this process does not have them; pages say so.
type Sources struct {
	// DB is a pool of the console's own.
	DB pgtx.Beginner
	// Changes is where actions are done, and jobs; nil where there are none.
	Changes *pgxpool.Pool
	// Metrics are those of this process.
	Metrics prometheus.Gatherer
	// Ready returns why this process should get no traffic, nil where it should.
	Ready func(context.Context) error
	// History keeps what the metrics of this process were; its Run is the caller's.
	History *history.History
	// Destinations are the names of those that this process knows.
	Destinations []string
	// Settings are those of this process, with secrets masked.
	Settings []Setting
	// Rules returns the rules that this process knows, nil where it has no rules file.
	Rules func() (*rules.Set, error)
	// Tenants returns the configured tenants, by name.
	Tenants func() map[string]int32
	// Version is the program's.
	Version string
}

// Console serves pages. It is safe for concurrent use.
type Console struct {
	cfg Config
	src Sources
	log *slog.Logger

	access  *access
	proxies []netip.Prefix
	cookies *cookies
	pages   pages
	assets  *assets
	routes  []route
	report  report
	// maskPaths are those of Config.Mask.
	maskPaths [][]string
}

// New makes a console, and reports what is wrong with its settings.
func New(cfg Config, src Sources, log *slog.Logger) (*Console, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Console{cfg: cfg, src: src, log: log, cookies: newCookies(src.DB, log), assets: loadAssets()}
	c.routes = c.table()
	var err error
	if c.access, err = loadAccess(cfg.Users); err != nil {
		return nil, err
	}
	if c.proxies, err = cfg.proxies(); err != nil {
		return nil, err
	}
	if c.maskPaths, err = maskPaths(cfg.Mask); err != nil {
		return nil, err
	}
	c.pages, err = loadPages()
	return c, err
}

func (cfg Config) validate() error {
	var errs []error
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		errs = append(errs, fmt.Errorf("console.listen: %w; set host:port", err))
	} else if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) &&
		cfg.Users == "" && cfg.ProxyHeader == "" {
		errs = append(errs, fmt.Errorf("console.listen: %s is not a loopback address; nobody is configured who may log in "+
			"there: set console.users, or console.proxy-header", cfg.Listen))
	}
	if at, err := url.Parse(cfg.Origin); err != nil || cfg.Origin != "" &&
		(at.Scheme != "https" && at.Scheme != "http" || at.Host == "" || at.Scheme+"://"+at.Host != cfg.Origin) {
		errs = append(errs, fmt.Errorf("console.origin: %q; set scheme and host, such as https://console.example.com",
			cfg.Origin))
	}
	if _, ok := colours[cfg.Colour]; !ok {
		errs = append(errs, fmt.Errorf("console.colour: %q; set grey, green, blue, amber or red", cfg.Colour))
	}
	return errors.Join(append(errs, cfg.validatePayloads())...)
}

var colours = map[string]struct{}{"grey": {}, "green": {}, "blue": {}, "amber": {}, "red": {}}

// LoginLink returns a link for one login as an operator, at the address that l listens at, or at console.origin.
func (c *Console) LoginLink(l net.Addr) string {
	return Link(cmp.Or(c.cfg.Origin, "http://"+l.String()), c.cookies.link())
}

// Link returns the link by which a secret of this process, or of operate/logins, logs in at a console's address.
func Link(address, secret string) string { return address + "/login#t=" + secret }

// Serve serves until ctx ends.
func (c *Console) Serve(ctx context.Context, l net.Listener) error {
	return httpserve.Serve(ctx, l, c.Handler(), time.Second)
}

// Work does the jobs that operators have made here or at another console, until ctx ends; see outbox.Work.
func (c *Console) Work(ctx context.Context) error {
	if c.cfg.ReadOnly || c.src.Changes == nil {
		<-ctx.Done()
		return nil
	}
	return outbox.Work(ctx, c.src.Changes, c.log)
}

// Handler returns the handler of all routes behind all checks: the Host first, then the login, then the role.
func (c *Console) Handler() http.Handler {
	return c.guard(c.mux())
}

// patience bounds what one page waits for the database; it is then answered with what is in memory.
const patience = 2 * time.Second

// read calls f in a read-only transaction whose statements can neither take long nor take much of PostgreSQL.
func (c *Console) read(ctx context.Context, f func(pgx.Tx) error) error {
	if c.src.DB == nil {
		return errNoDatabase
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	bounds := pgtx.Bounds{Idle: 5 * time.Second, Statement: patience, Lock: 100 * time.Millisecond}
	return pgtx.InTx(ctx, c.src.DB, pgx.TxOptions{AccessMode: pgx.ReadOnly}, bounds, func(tx pgx.Tx) error {
		// Compiling costs more than these short statements, and workers would be taken away from claims.
		if _, err := tx.Exec(ctx, "select set_config('jit', 'off', true), "+
			"set_config('max_parallel_workers_per_gather', '0', true)"); err != nil {
			return err
		}
		return f(tx)
	})
}

var errNoDatabase = errors.New("the database is not there yet")
