package evaluate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
)

// rule is one compiled rule.
type rule struct {
	id string
	// name is ruleset/id, which is unique.
	name string
	// stateKey is under what its keys and subjects are kept; a shadow keeps its own, so that trying a rule does not
	// use up what it will have to send.
	stateKey string
	hash     string
	kind     string
	off      bool
	shadow   bool
	owner    string
	response string
	// tenants is nil for all.
	tenants []int32
	sendTo  []string
	takes   []take

	subject   *program
	dedupeKey *program
	payload   *template
	limits    limits
	digest    *template

	absence *absence
	rate    *rate
	tests   []*inlineTest
}

// take says which events a rule looks at.
type take struct {
	on []string
	listener
}

// limits is what may hold a decision back. Zero: no such limit.
type limits struct {
	// dedupeFor is how long a key is remembered; 0 is for ever.
	dedupeFor time.Duration
	cooldown  time.Duration
	capMax    int
	capPer    time.Duration
	// digestAfter is how long suppressed decisions are counted before they are sent as one message.
	digestAfter time.Duration
}

func (l limits) any() bool { return l.cooldown > 0 || l.capMax > 0 }

// maxCap bounds cap.max: that many moments are kept per subject.
const maxCap = 50

// maxDuration bounds every length of time in a rule: ten years.
const maxDuration = 3660 * 24 * time.Hour

// ruleKeys are the keys that every kind has.
var ruleKeys = []string{"id", "kind", "state", "owner", "response", "description", "tenants", "send_to", "payload",
	"cooldown", "cap", "digest", "dedupe_for", "tests"}

// defaultKeys are those that a file can set for all its rules.
var defaultKeys = []string{"owner", "response", "state", "dedupe_for", "grace", "lookback"}

var kindKeys = map[string][]string{
	"event":   {"on", "match", "subject", "dedupe_key"},
	"absence": {"trigger", "cancel", "activity", "key", "within", "lookback", "grace", "anchor", "once_per", "recheck", "subject"},
	"rate": {"numerator", "denominator", "count", "window", "every", "settle", "baseline", "minimum", "fire", "clear", "no_data",
		"inhibited_by", "repeat", "severity"},
}

func (l *loader) rule(n *yaml.Node, i int) *rule {
	r := &rule{}
	c := l.src.Section(n, fmt.Sprintf("rules[%d]", i))
	if c.Require("id", "its name") {
		if r.id = l.name(c, "id"); r.id != "" {
			c.Where = "rules[" + r.id + "]"
		}
	}
	r.kind = c.OneOf("kind", "event", "absence", "rate")
	c.Allow(append(slices.Clone(ruleKeys), kindKeys[r.kind]...)...)
	r.name = l.ruleset + "/" + r.id
	r.hash = hashNode(n, l.defaults)
	l.common(r, c)
	switch r.kind {
	case "event":
		l.eventRule(r, c)
	case "absence":
		l.absenceRule(r, c)
	case "rate":
		l.rateRule(r, c)
	}
	l.tests(r, c)
	return r
}

// common reads what every kind of rule has.
func (l *loader) common(r *rule, c *yamlfile.Section) {
	if l.defaults != nil {
		for _, k := range defaultKeys {
			if v := l.defaults.Get(k); v != nil && (slices.Contains(ruleKeys, k) || slices.Contains(kindKeys[r.kind], k)) {
				c.Default(k, v)
			}
		}
	}
	c.String("description")
	if c.Require("owner", "every rule needs an owner and a documented response") {
		r.owner = c.String("owner")
	}
	if c.Require("response", "every rule needs a documented response: a file beside the rules or an https address") {
		r.response = c.String("response")
		if r.response != "" && !strings.HasPrefix(r.response, "https://") {
			if _, err := os.Stat(filepath.Join(filepath.Dir(l.src.Name), r.response)); err != nil {
				c.Fault("response", "there is no file %q in the folder of the rules; write down there what to do when this rule fires", r.response)
			}
		}
	}
	state := c.OneOf("state", "active", "shadow", "off")
	r.off, r.shadow = state == "off", state == "shadow"
	r.stateKey = r.name
	if r.shadow {
		r.stateKey += " (shadow)"
	}
	r.tenants = l.tenants
	if c.Get("tenants") != nil {
		r.tenants = l.tenantIDs(c)
	}
	l.sendTo(r, c)
	l.limits(r, c)
}

func (l *loader) sendTo(r *rule, c *yamlfile.Section) {
	if !c.Require("send_to", "the name of a destination of the configuration") {
		return
	}
	r.sendTo = c.Strings("send_to")
	for i, d := range r.sendTo {
		n := c.Get("send_to")
		if n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n = n.Content[i]
		}
		switch {
		case strings.ContainsAny(d, ":/., \t\"'()"):
			l.src.Fault(n, c.At("send_to"), "%q is not the name of a destination; addresses and expressions are not possible here", d)
		case l.known.Destinations != nil && !slices.Contains(l.known.Destinations, d):
			l.src.Fault(n, c.At("send_to"), "unknown destination %q%s", d, spell.DidYouMean(d, l.known.Destinations))
		case slices.Contains(r.sendTo[:i], d):
			l.src.Fault(n, c.At("send_to"), "destination %q is listed twice", d)
		}
	}
}

func (l *loader) limits(r *rule, c *yamlfile.Section) {
	r.limits.cooldown = c.Duration("cooldown", 0, time.Second, maxDuration)
	if n := c.Get("dedupe_for"); n != nil && n.Value != "forever" {
		r.limits.dedupeFor = c.Duration("dedupe_for", 0, time.Second, maxDuration)
	}
	if n := c.Get("cap"); n != nil {
		s := l.src.Section(n, c.At("cap"), "max", "per")
		if s.Require("max", "how many are sent at most") && s.Require("per", "in which time") {
			r.limits.capMax = s.Int("max", 1, 1, maxCap)
			r.limits.capPer = s.Duration("per", 0, time.Second, maxDuration)
		}
	}
	if n := c.Get("digest"); n != nil {
		if !r.limits.any() {
			l.src.Fault(n, c.At("digest"), "a digest tells what cooldown or cap held back, but the rule has neither")
		}
		s := l.src.Section(n, c.At("digest"), "after", "payload")
		r.limits.digestAfter = s.Duration("after", max(r.limits.cooldown, r.limits.capPer), time.Second, maxDuration)
		if p := s.Get("payload"); p != nil {
			sc := l.scope(nil, map[string]*types.Type{"digest": types.NewObjectType("digest")})
			r.digest = sc.template(l.src, p, s.At("payload"), 0)
		}
	}
}

// eventRule reads what only event rules have.
func (l *loader) eventRule(r *rule, c *yamlfile.Section) {
	on := l.on(c)
	sc := l.scope(on, map[string]*types.Type{"event": eventType})
	t := take{on: on, listener: listener{rule: r}}
	if n := c.Get("match"); n != nil {
		t.match = sc.compile(l.src, n, c.At("match"), condition)
		l.lintMatch(n, c.At("match"), on)
	}
	r.takes = []take{t}
	if n := c.Get("subject"); n != nil {
		r.subject = sc.compile(l.src, n, c.At("subject"), key)
	}
	if n := c.Get("dedupe_key"); n != nil {
		r.dedupeKey = sc.compile(l.src, n, c.At("dedupe_key"), key)
	}
	if n := c.Get("payload"); n != nil {
		r.payload = sc.template(l.src, n, c.At("payload"), 0)
	}
	if r.limits.any() && r.subject == nil {
		l.warn(c.Node(), c.Where, "cooldown and cap without a subject hold for the rule as a whole; all batches with a match wait for each other. Add subject: whom it is about")
	}
	if slices.Equal(on, []string{"*"}) && !r.limits.any() {
		l.warn(c.Get("on"), c.At("on"), "every event that matches makes a message, also of names that nobody thought of. Add cap or cooldown, or list the names")
	}
}

// on reads the event names that a rule listens to.
func (l *loader) on(c *yamlfile.Section) []string {
	if !c.Require("on", "the names of the events to look at") {
		return nil
	}
	on := c.Strings("on")
	for _, name := range on {
		if name == "*" {
			if len(on) > 1 {
				c.Fault("on", `"*" stands for all names; it stands alone`)
			}
			l.warn(c.Get("on"), c.At("on"), `"*" costs an evaluation for every event; list the names if they are known`)
			continue
		}
		if l.events != nil && l.events[name] == nil {
			known := make([]string, 0, len(l.events))
			for k := range l.events {
				known = append(known, k)
			}
			c.Fault("on", "event %q is not declared in the events section%s", name, spell.DidYouMean(name, known))
		}
	}
	return on
}

func (l *loader) warn(n *yaml.Node, where, format string, args ...any) {
	l.warnings = append(l.warnings,
		yamlfile.Fault{File: l.src.Name, Line: n.Line, Column: n.Column, Where: where, Message: fmt.Sprintf(format, args...)})
}

// hashNode gives 16 hexadecimal digits that change with the content of a rule and its defaults, and not with comments,
// quoting, layout, tests or the order of keys.
func hashNode(n *yaml.Node, defaults *yamlfile.Section) string {
	h := sha256.New()
	writeNode(h, n)
	if defaults != nil {
		writeNode(h, defaults.Node())
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func writeNode(w io.Writer, n *yaml.Node) {
	n = yamlfile.Resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		at := make([]int, 0, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value != "tests" {
				at = append(at, i)
			}
		}
		slices.SortFunc(at, func(a, b int) int { return strings.Compare(n.Content[a].Value, n.Content[b].Value) })
		fmt.Fprintf(w, "{%d", len(at))
		for _, i := range at {
			writeNode(w, n.Content[i])
			writeNode(w, n.Content[i+1])
		}
	case yaml.SequenceNode:
		fmt.Fprintf(w, "[%d", len(n.Content))
		for _, item := range n.Content {
			writeNode(w, item)
		}
	default:
		fmt.Fprintf(w, "%s%q", n.Tag, n.Value)
	}
}

func (r *rule) stateName() string {
	switch {
	case r.off:
		return "off"
	case r.shadow:
		return "shadow"
	}
	return "active"
}
