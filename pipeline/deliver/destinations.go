package deliver

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
	"sluice.example/sluice/pipeline/deliver/envelope"
)

// Destinations is the content of the destinations file, checked. The zero value has none.
type Destinations struct{ list []*Destination }

// Destination is one place to deliver to. Its secrets are never printed.
type Destination struct {
	// Name is what rules and applications call it.
	Name string
	// Type is the kind of sink: webhook, slack, qstash, nats or file.
	Type string

	where       string // file:line
	concurrency int
	prefetch    int
	timeout     time.Duration
	attempts    int
	retry       schedule
	retryStatus map[int]bool
	breaker     breakerConfig
	rate        float64 // messages a second; 0: no limit
	burst       int
	// maxRetryAfter bounds the wait that a receiver may ask for with Retry-After.
	maxRetryAfter time.Duration
	paused        bool
	irreversible  bool
	order         pipeline.Order
	literal       bool     // its address is an IP address
	secrets       []string // whatever must not appear in an error
	envelope      envelope.Kind
	tenants       envelope.Tenants
	web           webhookConfig
	open          func(guard) sink
}

// capacity is how many messages may be held for the destination. One with a rate holds what it may send in a few
// seconds.
func (d *Destination) capacity() int {
	n := d.concurrency * d.prefetch
	if d.rate > 0 {
		n = min(n, max(1, int(d.rate*rateWindow.Seconds())))
	}
	return n
}

// rateWindow: 5 s, a few polls. A guess.
const rateWindow = 5 * time.Second

// longestWait is for how long a message may be held before its own attempt ends.
func (d *Destination) longestWait() time.Duration {
	wait := time.Duration(d.prefetch) * d.timeout
	if d.rate > 0 {
		wait += time.Duration(float64(d.capacity()) / d.rate * float64(time.Second))
	}
	return wait
}

// Names lists the destinations in the file's order.
func (ds Destinations) Names() []string {
	names := make([]string, len(ds.list))
	for i, d := range ds.list {
		names[i] = d.Name
	}
	return names
}

// Irreversible lists the destinations that can't take back what they do.
func (ds Destinations) Irreversible() []string {
	var names []string
	for _, d := range ds.list {
		if d.irreversible {
			names = append(names, d.Name)
		}
	}
	return names
}

// NameTenants sets what envelopes call the tenants: their ids, by name. Call it before New. Without it, or without a
// name, a tenant is its number.
func (ds Destinations) NameTenants(ids map[string]int32) {
	names := make(envelope.Tenants, len(ids))
	for name, id := range ids {
		names[id] = name
	}
	for _, d := range ds.list {
		d.tenants = names
	}
}

// Load reads a destinations file. The error has everything that is wrong with it, each fault with its place. Secrets
// come from the environment and from files that it names.
func Load(file string) (Destinations, error) { return read(yamlfile.Read(file), os.LookupEnv) }

// Parse is Load for a text at hand; file is its name in errors.
func Parse(file string, text []byte, lookupEnv func(string) (string, bool)) (Destinations, error) {
	return read(yamlfile.Parse(file, text), lookupEnv)
}

func read(f *yamlfile.File, lookupEnv func(string) (string, bool)) (Destinations, error) {
	var ds Destinations
	top := f.Top("destinations")
	if f.Root() != nil && top.Require("destinations", "the list of destinations") {
		line := map[string]int{}
		for _, item := range f.Items(top.Get("destinations"), "destinations", "a list of destinations") {
			d := readDestination(f, item, lookupEnv)
			if first, twice := line[d.Name]; twice && d.Name != "" {
				f.Fault(item, "", "destination %q is on line %d already", d.Name, first)
			}
			line[d.Name] = item.Line
			ds.list = append(ds.list, d)
		}
	}
	if err := f.Err(); err != nil {
		return Destinations{}, fmt.Errorf("deliver: %w", err)
	}
	return ds, nil
}

// reader reads the settings of one destination.
type reader struct {
	*yamlfile.Section
	d         *Destination
	lookupEnv func(string) (string, bool)
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// kind reads the settings of one type of sink, and sets how it is opened.
type kind struct {
	name string
	read func(*reader)
}

var kinds = []kind{
	{"webhook", (*reader).webhook},
	{"slack", (*reader).slack},
	{"qstash", (*reader).qstash},
	{"nats", (*reader).nats},
	{"file", (*reader).file},
}

func readDestination(f *yamlfile.File, n *yaml.Node, lookupEnv func(string) (string, bool)) *Destination {
	d := &Destination{where: fmt.Sprintf("%s:%d", f.Name, n.Line), Type: "webhook"}
	r := &reader{Section: f.Section(n, "destinations"), d: d, lookupEnv: lookupEnv}
	if yamlfile.Resolve(n).Kind != yaml.MappingNode {
		return d
	}
	if d.Name = r.String("name"); !nameForm.MatchString(d.Name) {
		r.Fault("name", "expected a name of at most 63 lower-case letters, digits, '-', '_' and '.'; got %q", d.Name)
	}
	r.Where = fmt.Sprintf("destinations[%s]", d.Name)
	r.common()
	if r.Has("type") {
		d.Type = r.String("type")
	}
	var names []string
	for _, k := range kinds {
		if names = append(names, k.name); k.name == d.Type {
			k.read(r)
			r.Close()
			d.secrets = withParts(d.secrets)
			return d
		}
	}
	// Its settings can't be judged.
	r.Fault("type", "unknown type %q%s", d.Type, spell.DidYouMean(d.Type, names))
	return d
}

// What a destination has that does not say otherwise. With answers after 5 ms 64 senders take 12,000 a second; prefetch
// is the leases held for each sender, and timeout bounds one attempt. Guesses.
const (
	DefaultConcurrency = 64
	DefaultPrefetch    = 8
	DefaultTimeout     = 5 * time.Second
)

// common reads what every type takes.
func (r *reader) common() {
	d := r.d
	d.concurrency = r.Int("concurrency", DefaultConcurrency, 1, 10_000)
	d.prefetch = r.Int("prefetch", DefaultPrefetch, 1, 1000)
	d.attempts = r.Int("attempts", 6, 1, 1000)
	d.timeout = r.Duration("timeout", DefaultTimeout, time.Millisecond, time.Hour)
	d.maxRetryAfter = r.Duration("max_retry_after", time.Hour, 0, maxWait)
	d.paused = r.Bool("paused", false)
	d.irreversible = r.Bool("irreversible", false)
	d.retry = r.schedule()
	d.retryStatus = r.retryStatus()
	d.breaker = r.breaker()
	d.rate = r.Float("rate", 0, 1e-6, 1e6)
	d.burst = r.Int("burst", max(1, int(d.rate)), 1, 1_000_000)
	d.order = r.order()
}

// envelope reads envelope: the form of what a receiver gets.
func (r *reader) envelope(standard envelope.Kind, without ...envelope.Kind) {
	kinds := []string{string(standard)}
	for _, name := range envelope.Kinds() {
		if envelope.Kind(name) != standard && !slices.Contains(without, envelope.Kind(name)) {
			kinds = append(kinds, name)
		}
	}
	r.d.envelope = envelope.Kind(r.OneOf("envelope", kinds...))
}

// schedule reads retry: a list of waits, or the parameters of an exponential one.
func (r *reader) schedule() schedule {
	s := defaultSchedule
	n := r.Get("retry")
	switch {
	case n == nil:
	case n.Kind == yaml.SequenceNode:
		if len(n.Content) == 0 {
			r.Fault("retry", "expected at least one wait")
		}
		for _, item := range r.File().Items(n, r.At("retry"), "a list of waits") {
			if d, ok := r.File().Duration(item, r.At("retry"), 0, maxWait); ok {
				s.waits = append(s.waits, d)
			}
		}
	case n.Kind == yaml.MappingNode:
		e := r.Section.Section("retry", "base", "max", "jitter")
		s.base = e.Duration("base", s.base, time.Millisecond, maxWait)
		s.max = e.Duration("max", s.max, time.Millisecond, maxWait)
		s.jitter = e.Float("jitter", s.jitter, 0, 1)
	default:
		r.Fault("retry", "expected a list such as [5s, 5m, 1h], or base, max and jitter")
	}
	return s
}

// breaker reads breaker: off, or its parameters.
func (r *reader) breaker() breakerConfig {
	b := defaultBreaker
	n := r.Get("breaker")
	switch {
	case n == nil:
	case n.Kind == yaml.ScalarNode && (n.Value == "off" || n.Value == "false"):
		b.failures = 0
	case n.Kind == yaml.MappingNode:
		e := r.Section.Section("breaker", "failures", "pause", "max_pause")
		b.failures = e.Int("failures", b.failures, 1, 1_000_000)
		b.pause = e.Duration("pause", b.pause, time.Millisecond, maxWait)
		b.maxPause = e.Duration("max_pause", b.maxPause, time.Millisecond, maxWait)
	default:
		r.Fault("breaker", "expected off, or failures, pause and max_pause")
	}
	return b
}

// order reads order: {by: subject_key, dead: skip or block}.
func (r *reader) order() pipeline.Order {
	e := r.Section.Section("order", "by", "dead")
	if e == nil {
		return pipeline.Unordered
	}
	if e.Require("by", "subject_key") {
		e.OneOf("by", "subject_key")
	}
	e.Require("dead", "skip: the messages after a dead one go on; block: they wait until it is retried or discarded")
	if e.OneOf("dead", "skip", "block") == "block" {
		return pipeline.DeadBlocks
	}
	return pipeline.DeadSkips
}

// retryStatus reads the status codes that are tried again although they would be final.
func (r *reader) retryStatus() map[int]bool {
	n := r.Get("retry_status")
	if n == nil {
		return nil
	}
	set := map[int]bool{}
	for _, item := range r.File().Items(n, r.At("retry_status"), "a list of status codes such as [404, 409]") {
		code, err := strconv.Atoi(item.Value)
		if err != nil || code < 300 || code > 599 {
			r.File().Fault(item, r.At("retry_status"), "expected the status code of a failure (300 to 599), got %s",
				yamlfile.Describe(item))
		}
		set[code] = true
	}
	return set
}
