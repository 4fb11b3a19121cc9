package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// config is everything that an operator may set: what belongs to the program as a whole, and each stage's own Config.
type config struct {
	databaseURL  string
	dataDir      string
	roles        []string
	rules        string
	destinations string
	tenants      string
	listen       string
	adminListen  string
	logFormat    string
	logLevel     string
	startTimeout time.Duration
	drainTimeout time.Duration
	readyFill    float64
	queryConns   int
}

// roles that a process may take. Several processes on one database may share them out in any way.
var allRoles = []string{"ingest", "deliver", "retain"}

func defaultConfig() *config {
	return &config{
		dataDir:      ".pipeline",
		roles:        slices.Clone(allRoles),
		listen:       "127.0.0.1:8080",
		adminListen:  "127.0.0.1:9090",
		logFormat:    "auto",
		logLevel:     "info",
		startTimeout: time.Minute,
		drainTimeout: 30 * time.Second,
		readyFill:    0.95,
		queryConns:   6,
	}
}

// settings is the table of everything that can be set.
func (c *config) settings() []*setting {
	table := []*setting{
		{key: "database-url", value: &c.databaseURL, mask: maskURL, doc: "PostgreSQL 14 or newer, as a URL or key=value string; DATABASE_URL sets it too. Empty: a private PostgreSQL under data-dir"},
		{key: "data-dir", value: &c.dataDir, doc: "folder of the private PostgreSQL; not used with a database-url"},
		{key: "database.connections", value: &c.queryConns, unit: "connections", doc: "pool for everything but writing batches: claims, results, retention, readiness. The writers have a pool of their own, of copyin.writers and one"},
		{key: "database.start-timeout", value: &c.startTimeout, doc: "how long a starting process waits for the database before it gives up"},
		{key: "roles", value: &c.roles, doc: "what this process does: any of " + strings.Join(allRoles, ", ")},
		{key: "rules", value: &c.rules, doc: "rules file (YAML). Empty: events are stored and nothing is decided"},
		{key: "destinations", value: &c.destinations, doc: "destinations file (YAML). Empty: nothing can be sent"},
		{key: "tenants", value: &c.tenants, doc: "tenants file (YAML). Empty: one tenant, named default, and no authentication"},
		{key: "listen", value: &c.listen, doc: "address of the events API"},
		{key: "admin.listen", value: &c.adminListen, doc: "address of /healthz, /readyz, /metrics and /debug/pprof. It has no authentication: keep it on loopback or a private network"},
		{key: "admin.ready-fill", value: &c.readyFill, unit: "share", doc: "/readyz answers 503 while the buffer is fuller than this"},
		{key: "log.format", value: &c.logFormat, doc: "text, json, or auto: text on a terminal and json otherwise"},
		{key: "log.level", value: &c.logLevel, doc: "debug, info, warn or error"},
		{key: "drain-timeout", value: &c.drainTimeout, doc: "how long SIGTERM and SIGINT let the stages finish before the process ends anyway"},
	}
	for _, s := range table {
		s.source = "default"
	}
	return table
}

// validate reports what is wrong with the program's own settings; each stage checks its own when it is made.
func (c *config) validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(c.listen == "", "listen: empty; give host:port")
	fault(c.adminListen == "", "admin.listen: empty; give host:port")
	fault(c.databaseURL == "" && c.dataDir == "", "data-dir: empty, and there is no database-url; give one of them")
	fault(!slices.Contains([]string{"auto", "text", "json"}, c.logFormat), "log.format: %q is none of auto, text, json", c.logFormat)
	fault(!slices.Contains([]string{"debug", "info", "warn", "error"}, c.logLevel), "log.level: %q is none of debug, info, warn, error", c.logLevel)
	fault(c.startTimeout <= 0, "database.start-timeout: %s; has to be positive", c.startTimeout)
	fault(c.drainTimeout <= 0, "drain-timeout: %s; has to be positive", c.drainTimeout)
	fault(c.readyFill <= 0 || c.readyFill > 1, "admin.ready-fill: %g; has to be over 0 and at most 1", c.readyFill)
	fault(c.queryConns < 2, "database.connections: %d; has to be at least 2", c.queryConns)
	fault(len(c.roles) == 0, "roles: empty; give any of %s", strings.Join(allRoles, ", "))
	for _, r := range c.roles {
		fault(!slices.Contains(allRoles, r), "roles: unknown role %q%s", r, didYouMean(r, allRoles))
	}
	return errors.Join(errs...)
}

func (c *config) hasRole(role string) bool { return slices.Contains(c.roles, role) }
