package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.example/sluice/console"
	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/memory"
	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/pipeline/buffer"
	"sluice.example/sluice/pipeline/claim"
	"sluice.example/sluice/pipeline/copyin"
	"sluice.example/sluice/pipeline/deliver"
	"sluice.example/sluice/pipeline/evaluate"
	"sluice.example/sluice/pipeline/ingest"
	"sluice.example/sluice/pipeline/retain"
)

// config is everything that an operator may set: what belongs to the program as a whole, and each stage's own Config.
type config struct {
	databaseURL  string
	dataDir      string
	roles        []string
	nodeName     string
	destinations string
	topics       string
	tenants      string
	listen       string
	adminListen  string
	adminHosts   []string
	readyFile    string
	logFormat    string
	logLevel     string
	startTimeout time.Duration
	drainDelay   time.Duration
	drainTimeout time.Duration
	readyFill    float64
	queryConns   int

	console console.Config
	// read are the settings, with where each comes from.
	read     []*setting
	ingest   ingest.Config
	buffer   buffer.Config
	copyin   copyin.Config
	evaluate evaluate.Config
	claim    claim.Config
	deliver  deliver.Config
	retain   retain.Config
}

// roles that a process may take. Several processes on one database may share them out in any way.
var allRoles = []string{"ingest", "sweep", "deliver", "retain", "console"}

func defaultConfig() *config {
	return &config{
		dataDir:      ".pipeline",
		roles:        slices.Clone(allRoles),
		listen:       "127.0.0.1:8080",
		adminListen:  "127.0.0.1:9090",
		logFormat:    "auto",
		logLevel:     "info",
		startTimeout: 2 * time.Minute,
		drainTimeout: 30 * time.Second,
		readyFill:    0.95,
		queryConns:   6,

		console:  console.DefaultConfig(),
		ingest:   ingest.DefaultConfig(),
		buffer:   buffer.DefaultConfig(),
		copyin:   copyin.DefaultConfig(),
		evaluate: evaluate.DefaultConfig(),
		claim:    claim.DefaultConfig(),
		deliver:  deliver.DefaultConfig(),
		retain:   retain.DefaultConfig(),
	}
}

// settings is the table of everything that can be set.
func (c *config) settings() []*setting {
	table := []*setting{
		{key: "database-url", value: &c.databaseURL, mask: cli.MaskURL,
			doc: "PostgreSQL 14 or newer, as a URL or key=value string; DATABASE_URL sets it too. Empty: a private " +
				"PostgreSQL under data-dir"},
		{key: "data-dir", value: &c.dataDir, doc: "folder of the private PostgreSQL; not used with a database-url"},
		{key: "database.connections", value: &c.queryConns, unit: "connections",
			doc: "pool for everything but writing batches: claims, results, retention, readiness. The writers have a pool " +
				"of their own, of buffer.writers"},
		{key: "database.start-timeout", value: &c.startTimeout,
			doc: "how long a starting process waits for the database"},
		{key: "roles", value: &c.roles, doc: "what this process does: any of " + strings.Join(allRoles, ", ")},
		{key: "node.name", value: &c.nodeName,
			doc: "what operators call this process; it should outlast a restart, and no two should share it. Empty: the " +
				"host's name and the port of admin.listen"},
		{key: "rules", value: &c.evaluate.Rules,
			doc: "rules file (YAML), or a folder of them. Empty: events are stored and nothing is decided"},
		{key: "destinations", value: &c.destinations, doc: "destinations file (YAML). Empty: nothing can be sent"},
		{key: "topics", value: &c.topics,
			doc: "topics file (YAML): which destinations stand behind a topic that applications enqueue for. Empty: no topics"},
		{key: "tenants", value: &c.tenants,
			doc: "tenants file (YAML). Empty: one tenant, named default, and no authentication"},
		{key: "listen", value: &c.listen, doc: "address of the events API"},
		{key: "admin.listen", value: &c.adminListen,
			doc: "address of /healthz, /readyz, /metrics, /v1/books and /debug/pprof. It has no authentication: keep it on " +
				"loopback or a private network"},
		{key: "admin.hosts", value: &c.adminHosts, unit: "names",
			doc: "host names by which others ask on admin.listen, like the name of a service that Prometheus scrapes; " +
				"addresses, localhost and the host of admin.listen are always taken"},
		{key: "admin.ready-fill", value: &c.readyFill, unit: "share",
			doc: "/readyz answers 503 while the buffer is fuller than this"},
		{key: "console.listen", value: &c.console.Listen,
			doc: "address of the operators' console, for the role console. It asks for a login on every address"},
		{key: "console.hosts", value: &c.console.Hosts, unit: "names",
			doc: "host names by which browsers ask on console.listen; loopback and the host of console.listen are always taken"},
		{key: "console.origin", value: &c.console.Origin,
			doc: "how browsers reach the console through a proxy, such as https://console.example.com. Over https its cookie " +
				"is sent by that alone. Empty: directly"},
		{key: "console.users", value: &c.console.Users,
			doc: "users file (YAML): who may log in to the console by name and password, and tokens for programs. Empty: " +
				"logins by links alone, and only on loopback"},
		{key: "console.proxy-header", value: &c.console.ProxyHeader,
			doc: "header in which a proxy that logs people in writes their name, such as X-Forwarded-User; the proxy has to " +
				"remove it from what clients send. Empty: none"},
		{key: "console.proxy-networks", value: &c.console.ProxyNetworks, unit: "networks",
			doc: "where that proxy asks from, such as 127.0.0.1/32; the header of anybody else says nothing"},
		{key: "console.proxy-operators", value: &c.console.ProxyOperators, unit: "names",
			doc: "names in that header that are operators; all others are viewers"},
		{key: "console.name", value: &c.console.Name,
			doc: "name of the environment, like prod-eu, shown on every page of the console"},
		{key: "console.colour", value: &c.console.Colour,
			doc: "colour of the environment on every page of the console: grey, green, blue, amber or red"},
		{key: "console.payloads", value: &c.console.Payloads,
			doc: "what operators see of events, payloads and headers in the console: hidden, masked or shown"},
		{key: "console.viewer-payloads", value: &c.console.ViewerPayloads, doc: "the same for viewers"},
		{key: "console.mask", value: &c.console.Mask, unit: "paths",
			doc: "fields whose values the console hides where payloads are masked, such as email or properties.iban"},
		{key: "console.read-only", value: &c.console.ReadOnly, doc: "take all actions away from the console"},
		{key: "ready-file", value: &c.readyFile,
			doc: "file that gets the addresses, as one JSON object, once everything runs; it is removed when the process " +
				"ends. Empty: none"},
		{key: "log.format", value: &c.logFormat, doc: "text, json, or auto: text on a terminal and json otherwise"},
		{key: "log.level", value: &c.logLevel, doc: "debug, info, warn or error"},
		{key: "drain-delay", value: &c.drainDelay,
			doc: "how long requests are still taken after SIGTERM, while /readyz answers 503 and every answer ends its " +
				"connection, so that load balancers hear of it; then drain-timeout begins"},
		{key: "drain-timeout", value: &c.drainTimeout,
			doc: "how long SIGTERM and SIGINT let the stages finish before the process ends anyway"},

		{key: "ingest.max-body-bytes", value: &c.ingest.MaxBodyBytes, unit: "bytes",
			doc: "largest request body as it comes over the wire"},
		{key: "ingest.max-decoded-bytes", value: &c.ingest.MaxDecodedBytes, unit: "bytes",
			doc: "largest request body after decompression"},
		{key: "ingest.max-reading-bytes", value: &c.ingest.MaxReadingBytes, unit: "bytes",
			doc: "bound on the bodies of all requests being read and decoded; past it requests are refused with 429"},
		{key: "ingest.max-event-bytes", value: &c.ingest.MaxEventBytes, unit: "bytes", doc: "largest JSON of one event"},
		{key: "ingest.max-events", value: &c.ingest.MaxEvents, unit: "events", doc: "most events in one request"},
		{key: "ingest.max-age", value: &c.ingest.MaxAge,
			doc: "how far in the past occurred_at may lie; raise it to import history"},
		{key: "ingest.max-ahead", value: &c.ingest.MaxAhead,
			doc: "how far in the future occurred_at may lie, for clocks that are wrong"},
		{key: "ingest.keep-unknown-fields", value: &c.ingest.KeepUnknownFields,
			doc: "keep unknown top-level fields under properties; otherwise such an event is rejected, naming the field"},
		{key: "ingest.trace-context", value: &c.ingest.TraceContext,
			doc: "keep the sampled traceparent and tracestate of requests and CloudEvents (W3C Trace Context), and send them " +
				"on with the messages that event rules decide because of them"},
		{key: "ingest.cors-origins", value: &c.ingest.CORSOrigins, unit: "origins",
			doc: "web pages that may post events, as https://shop.example.com, or * for any"},
		{key: "ingest.tls-cert-file", value: &c.ingest.TLSCertFile,
			doc: "certificate chain (PEM) to serve HTTPS with; read again when it changes"},
		{key: "ingest.tls-key-file", value: &c.ingest.TLSKeyFile, doc: "its private key (PEM)"},
		{key: "ingest.concurrency", value: &c.ingest.Concurrency, unit: "requests",
			doc: "requests being answered; past it requests are refused with 429"},
		{key: "ingest.read-timeout", value: &c.ingest.ReadTimeout, doc: "how long a client may take to send one request"},
		{key: "ingest.idle-timeout", value: &c.ingest.IdleTimeout,
			doc: "how long a connection may stay open between two requests"},
		{key: "ingest.answer-timeout", value: &c.ingest.AnswerTimeout,
			doc: "how long a request waits for the outcome of its events; then it is answered 503 and the outcome is open"},

		{key: "buffer.max-bytes", value: &c.buffer.MaxBytes, unit: "bytes",
			doc: "bound on the events in memory, from the request until their batch is committed; past it requests are " +
				"refused with 429"},
		{key: "buffer.max-events", value: &c.buffer.MaxEvents, unit: "events", doc: "a batch is sealed at this many events"},
		{key: "buffer.max-batch-bytes", value: &c.buffer.MaxBatchBytes, unit: "bytes", doc: "a batch is sealed at this size"},
		{key: "buffer.max-wait", value: &c.buffer.MaxWait, auto: true,
			doc: "a batch is sealed at this age while another is being written; otherwise it is written at once. auto " +
				"follows the time that a batch takes, from 1ms to 50ms"},
		{key: "buffer.writers", value: &c.buffer.Writers, unit: "writers",
			doc: "batches written at the same time, one connection each; more than 2 help only where a COMMIT takes long"},

		{key: "copyin.deadline", value: &c.copyin.Deadline,
			doc: "bound on writing one batch, with all its retries; then its clients are answered 503"},
		{key: "copyin.dedupe-window", value: &c.copyin.DedupeWindow,
			doc: "how far around its arrival to look for an event without a time by its id alone"},
		{key: "copyin.recent-bytes", value: &c.copyin.RecentBytes, unit: "bytes",
			doc: "memory for the keys that this process wrote last, 8 bytes each, so that retries are looked up before " +
				"COPY: 0 off"},

		{key: "evaluate.max-payload-bytes", value: &c.evaluate.MaxPayloadBytes, unit: "bytes",
			doc: "largest payload of one message; a larger one is not decided, and counted"},

		{key: "sweep.every", value: &c.evaluate.SweepEvery,
			doc: "how often due timers and digests are looked for; an absence rule may fire this much late"},
		{key: "sweep.idle-timeout", value: &c.evaluate.IdleTimeout,
			doc: "how long what a sweep has locked outlasts its process where that has stopped; batches with events of those " +
				"subjects wait for it"},

		{key: "claim.lease", value: &c.claim.Lease,
			doc: "how long a claimed message belongs to its worker. A worker that is killed delays its messages by this much"},

		{key: "deliver.poll-interval", value: &c.deliver.PollInterval,
			doc: "how often the dispatcher asks for due messages when nothing wakes it"},
		{key: "deliver.claim-batch", value: &c.deliver.ClaimBatch, unit: "messages",
			doc: "most messages that one claim takes"},
		{key: "deliver.max-bytes", value: &c.deliver.MaxBytes, unit: "bytes",
			doc: "bound on the memory of the messages held; a payload counts twice. Each destination has a part of it " +
				"that no other can take"},
		{key: "deliver.allow-networks", value: &c.deliver.AllowNetworks, unit: "networks",
			doc: "networks such as 10.1.0.0/16 at which every destination may be called although they are not public"},

		{key: "retain.events", value: &c.retain.Events,
			doc: "age at which a day of events is dropped; 0 keeps without end. Longer than ingest.max-age, or old events " +
				"would be stored and dropped"},
		{key: "retain.outbox", value: &c.retain.Outbox,
			doc: "how long messages stay after they were sent or skipped; 0 keeps without end"},
		{key: "retain.dead", value: &c.retain.Dead,
			doc: "how long messages stay after they were given up; 0 keeps without end"},
		{key: "retain.attempts", value: &c.retain.Attempts,
			doc: "how long delivery attempts are kept; the successful one is part of the message and goes with it; 0 keeps " +
				"without end"},
		{key: "retain.quarantine", value: &c.retain.Quarantine,
			doc: "how long events stay that PostgreSQL could not store; 0 keeps without end"},
		{key: "retain.processed", value: &c.retain.Processed,
			doc: "how long an idempotent receiver in this database remembers a message; 0 keeps without end"},
		{key: "retain.rule-state", value: &c.evaluate.RuleState,
			doc: "how long to keep timers and counts after the last node dropped the rule; 0 keeps without end. Longer " +
				"than its lookback and baseline, or a rule that comes back begins anew"},
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
	fault(c.listen == "", "listen: empty; set host:port")
	fault(c.adminListen == "", "admin.listen: empty; set host:port")
	fault(c.databaseURL == "" && c.dataDir == "", "data-dir: empty, and there is no database-url; set one of them")
	fault(!slices.Contains([]string{"auto", "text", "json"}, c.logFormat), "log.format: %q is none of auto, text, json",
		c.logFormat)
	fault(!slices.Contains([]string{"debug", "info", "warn", "error"}, c.logLevel),
		"log.level: %q is none of debug, info, warn, error", c.logLevel)
	fault(c.startTimeout <= 0, "database.start-timeout: %s; has to be positive", c.startTimeout)
	fault(c.drainDelay < 0, "drain-delay: %s; has to be 0 or more", c.drainDelay)
	fault(c.drainTimeout <= 0, "drain-timeout: %s; has to be positive", c.drainTimeout)
	fault(c.readyFill <= 0 || c.readyFill > 1, "admin.ready-fill: %g; has to be over 0 and at most 1", c.readyFill)
	fault(c.queryConns < 2, "database.connections: %d; has to be at least 2", c.queryConns)
	fault(c.retain.Events > 0 && c.retain.Events < c.ingest.MaxAge,
		"retain.events is %s and ingest.max-age %s: events would be stored only to be dropped; raise the first or lower "+
			"the second", duration.Format(c.retain.Events), duration.Format(c.ingest.MaxAge))
	fault(len(c.nodeName) > 100 || cli.Visible(c.nodeName) != c.nodeName,
		"node.name: %q; has to be at most 100 bytes, without control characters", c.nodeName)
	fault(len(c.roles) == 0, "roles: empty; set any of %s", strings.Join(allRoles, ", "))
	for _, r := range c.roles {
		fault(!slices.Contains(allRoles, r), "roles: unknown role %q%s", r, spell.DidYouMean(r, allRoles))
	}
	return errors.Join(errs...)
}

// memory lists what the settings let this process hold.
func (c *config) memory() (parts []memory.Part) {
	if c.hasRole("ingest") {
		parts = append(parts, memory.Part{Setting: "ingest.max-reading-bytes", Bytes: c.ingest.MaxReadingBytes},
			memory.Part{Setting: "buffer.max-bytes", Bytes: c.buffer.MaxBytes},
			memory.Part{Setting: "copyin.recent-bytes", Bytes: c.copyin.RecentBytes})
	}
	if c.hasRole("deliver") {
		parts = append(parts, memory.Part{Setting: "deliver.max-bytes", Bytes: c.deliver.MaxBytes})
	}
	return parts
}

func (c *config) hasRole(role string) bool { return slices.Contains(c.roles, role) }
