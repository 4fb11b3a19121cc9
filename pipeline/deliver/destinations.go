package deliver

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/pipeline"
)

// Destinations is what the destinations file says, checked. The zero value has none.
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
	order         pipeline.Order
	secrets       []string // whatever must not appear in an error
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

// Load reads a destinations file. The error joins everything that is wrong with it, each with its line. Secrets come
// from the environment and from files that it names.
func Load(file string) (Destinations, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Destinations{}, fmt.Errorf("deliver: destinations file: %w", err)
	}
	return Parse(file, text, os.LookupEnv)
}

// Parse is Load for a text at hand; file is its name in errors.
func Parse(file string, text []byte, lookupEnv func(string) (string, bool)) (Destinations, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return Destinations{}, fmt.Errorf("deliver: %s: %w", file, err)
	}
	if root.Kind == 0 { // an empty file
		return Destinations{}, nil
	}
	p := &parser{faults: &faults{file: file}, lookupEnv: lookupEnv}
	var ds Destinations
	top := p.mapping(root.Content[0], "the file")
	if n := top.get("destinations"); n == nil || n.Kind != yaml.SequenceNode {
		p.add(root.Content[0], "the file must hold a list named destinations")
	} else {
		line := map[string]int{}
		for _, item := range n.Content {
			d := p.destination(item)
			if first, twice := line[d.Name]; twice && d.Name != "" {
				p.add(item, "destination %q stands in line %d already", d.Name, first)
			}
			line[d.Name] = item.Line
			ds.list = append(ds.list, d)
		}
	}
	top.finish()
	if len(p.errs) > 0 {
		return Destinations{}, fmt.Errorf("deliver: %w", errors.Join(p.errs...))
	}
	return ds, nil
}

type parser struct {
	*faults
	lookupEnv func(string) (string, bool)
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// kind reads the settings of one type of sink, and sets how it is opened.
type kind struct {
	name string
	read func(*parser, *mapping, *Destination)
}

var kinds = []kind{
	{"webhook", (*parser).webhook},
	{"slack", (*parser).slack},
	{"qstash", (*parser).qstash},
	{"nats", (*parser).nats},
	{"file", (*parser).lines},
}

func (p *parser) destination(n *yaml.Node) *Destination {
	m := p.mapping(n, "a destination")
	d := &Destination{where: fmt.Sprintf("%s:%d", p.file, n.Line), Type: "webhook"}
	d.Name, _ = m.str("name")
	if !nameForm.MatchString(d.Name) {
		p.add(n, "a destination needs a name of lower-case letters, digits, '-', '_' and '.', at most 63; got %q", d.Name)
	}
	m.what = fmt.Sprintf("destination %q", d.Name)
	if kind, ok := m.str("type"); ok {
		d.Type = kind
	}
	// 64 senders: with answers after 5 ms they take 12,000 a second.
	d.concurrency, d.prefetch, d.attempts, d.timeout = 64, 8, 6, 5*time.Second
	m.number("concurrency", &d.concurrency, 1, 10_000)
	m.number("prefetch", &d.prefetch, 1, 1000)
	m.number("attempts", &d.attempts, 1, 1000)
	m.duration("timeout", &d.timeout, time.Millisecond, time.Hour)
	d.maxRetryAfter = time.Hour
	m.duration("max_retry_after", &d.maxRetryAfter, 0, maxWait)
	d.paused = m.boolean("paused")
	d.retry = p.schedule(m)
	d.breaker = p.breaker(m)
	if m.decode("rate", "a number above 0: messages a second", &d.rate) && !(d.rate > 0 && d.rate <= 1e6) {
		p.add(m.get("rate"), "%s: rate must be a number above 0: messages a second", m.what)
	}
	d.burst = max(1, int(d.rate))
	m.number("burst", &d.burst, 1, 1_000_000)
	d.order = p.order(m)
	d.retryStatus = p.retryStatus(m)
	var names []string
	for _, k := range kinds {
		if names = append(names, k.name); k.name == d.Type {
			k.read(p, m, d)
			m.finish()
			return d
		}
	}
	// Its settings can't be judged.
	p.add(n, "%s: unknown type %q%s", m.what, d.Type, didYouMean(d.Type, names))
	return d
}

// schedule reads retry: a list of waits, or the parameters of an exponential one.
func (p *parser) schedule(m *mapping) schedule {
	s := defaultSchedule
	n := m.get("retry")
	switch {
	case n == nil:
	case n.Kind == yaml.SequenceNode:
		if len(n.Content) == 0 {
			p.add(n, "%s: retry must have at least one wait", m.what)
		}
		for _, item := range n.Content {
			var d time.Duration
			p.duration(item, m.what+": retry", &d, 0, maxWait)
			s.waits = append(s.waits, d)
		}
	case n.Kind == yaml.MappingNode:
		e := p.mapping(n, m.what+": retry")
		e.duration("base", &s.base, time.Millisecond, maxWait)
		e.duration("max", &s.max, time.Millisecond, maxWait)
		if e.decode("jitter", "a number from 0 (none) to 1 (full)", &s.jitter) && (s.jitter < 0 || s.jitter > 1) {
			p.add(n, "%s: jitter must be a number from 0 (none) to 1 (full)", e.what)
		}
		e.finish()
	default:
		p.add(n, "%s: retry must be a list such as [5s, 5m, 1h], or hold base, max and jitter", m.what)
	}
	return s
}

// breaker reads breaker: off, or its parameters.
func (p *parser) breaker(m *mapping) breakerConfig {
	b := defaultBreaker
	n := m.get("breaker")
	switch {
	case n == nil:
	case n.Kind == yaml.ScalarNode && (n.Value == "off" || n.Value == "false"):
		b.failures = 0
	case n.Kind == yaml.MappingNode:
		e := p.mapping(n, m.what+": breaker")
		e.number("failures", &b.failures, 1, 1_000_000)
		e.duration("pause", &b.pause, time.Millisecond, maxWait)
		e.duration("max_pause", &b.maxPause, time.Millisecond, maxWait)
		e.finish()
	default:
		p.add(n, "%s: breaker must be off, or hold failures, pause and max_pause", m.what)
	}
	return b
}

// order reads order: {by: subject_key, dead: skip or block}.
func (p *parser) order(m *mapping) (order pipeline.Order) {
	n := m.get("order")
	if n == nil {
		return pipeline.Unordered
	}
	e := p.mapping(n, m.what+": order")
	by, _ := e.str("by")
	if by != "subject_key" {
		p.add(n, "%s: by must be subject_key", e.what)
	}
	switch dead, _ := e.str("dead"); dead {
	case "skip":
		order = pipeline.DeadSkips
	case "block":
		order = pipeline.DeadBlocks
	default:
		p.add(n, "%s: dead must be skip (the messages after a dead one go on) "+
			"or block (they wait until it is retried or discarded)", e.what)
	}
	e.finish()
	return order
}

// retryStatus reads the status codes that are tried again although they would be final.
func (p *parser) retryStatus(m *mapping) map[int]bool {
	n := m.get("retry_status")
	if n == nil {
		return nil
	}
	set := map[int]bool{}
	var codes []int
	if n.Kind != yaml.SequenceNode || n.Decode(&codes) != nil {
		p.add(n, "%s: retry_status must be a list of status codes such as [404, 409]", m.what)
	}
	for _, c := range codes {
		if c < 300 || c > 599 {
			p.add(n, "%s: retry_status: %d is no status code of a failure (300 to 599)", m.what, c)
		}
		set[c] = true
	}
	return set
}

// secrets reads <key>_env and <key>_file, each one name or a list. The values never stand in the file itself.
func (p *parser) secrets(m *mapping, key string) []string {
	var all []string
	add := func(n *yaml.Node, from, value string) {
		switch value = strings.TrimSpace(value); {
		case value == "":
			p.add(n, "%s: %s is empty", m.what, from)
		case strings.ContainsAny(value, "\r\n\x00"):
			p.add(n, "%s: %s has a line break inside: give one secret at a time", m.what, from)
		default:
			all = append(all, value)
		}
	}
	for _, name := range m.strings(key + "_env") {
		value, ok := p.lookupEnv(name)
		if !ok {
			p.add(m.get(key+"_env"), "%s: the environment has no %s", m.what, name)
			continue
		}
		add(m.get(key+"_env"), "$"+name, value)
	}
	for _, name := range m.strings(key + "_file") {
		value, err := os.ReadFile(name)
		if err != nil {
			p.add(m.get(key+"_file"), "%s: %s_file: %v", m.what, key, err)
			continue
		}
		add(m.get(key+"_file"), name, string(value))
	}
	if n := m.get(key); n != nil {
		p.add(n, "%s: %s must not stand in this file: use %s_env or %s_file", m.what, key, key, key)
	}
	return all
}

// address reads url or url_env.
func (p *parser) address(m *mapping, schemes ...string) *url.URL {
	text, here := m.str("url")
	node := m.get("url")
	if name, ok := m.str("url_env"); ok {
		if here {
			p.add(m.get("url_env"), "%s: has both url and url_env", m.what)
		}
		node = m.get("url_env")
		if text, here = p.lookupEnv(name); !here {
			p.add(node, "%s: the environment has no %s", m.what, name)
			return nil
		}
	}
	if node == nil {
		p.add(m.node, "%s: needs url or url_env", m.what)
		return nil
	}
	// The address itself may be a secret, so no error quotes it.
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case err != nil || u.Hostname() == "" || !contains(schemes, u.Scheme):
		p.add(node, "%s: the address must be a full %s URL", m.what, strings.Join(schemes, " or "))
		return nil
	case u.User != nil:
		p.add(node, "%s: the address must not hold a user and password: send them separately (headers_env, token_env)", m.what)
		return nil
	}
	return u
}
