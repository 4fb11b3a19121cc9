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

// ruleKeys are the keys that every kind has.
var ruleKeys = []string{"id", "kind", "state", "owner", "response", "description", "tenants", "send_to", "payload",
	"cooldown", "cap", "digest", "dedupe_for", "tests"}

var kindKeys = map[string][]string{
	"event":   {"on", "match", "subject", "dedupe_key"},
	"absence": {"trigger", "cancel", "activity", "key", "within", "lookback", "grace", "anchor", "once_per", "recheck", "subject"},
	"rate": {"numerator", "denominator", "count", "window", "every", "settle", "baseline", "minimum", "fire", "clear", "no_data",
		"inhibited_by", "repeat", "severity"},
}

func (l *loader) rule(n *yaml.Node, i int) *rule {
	r := &rule{}
	where := fmt.Sprintf("rules[%d]", i)
	head := &section{src: l.src, node: n, where: where, vals: map[string]*yaml.Node{}}
	if n.Kind == yaml.MappingNode {
		for j := 0; j+1 < len(n.Content); j += 2 {
			head.vals[n.Content[j].Value] = resolve(n.Content[j+1])
		}
	}
	if n.Kind == yaml.MappingNode && head.need("id", "its name") {
		if r.id = l.name(head, "id"); r.id != "" {
			where = "rules[" + r.id + "]"
			head.where = where
		}
	}
	r.kind = head.oneOf("kind", "event", "absence", "rate")
	c := l.src.section(n, where, append(slices.Clone(ruleKeys), kindKeys[r.kind]...)...)
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
func (l *loader) common(r *rule, c *section) {
	if l.defaults != nil {
		for k, v := range l.defaults.vals {
			if c.vals[k] == nil && (slices.Contains(ruleKeys, k) || slices.Contains(kindKeys[r.kind], k)) {
				c.vals[k] = v
			}
		}
	}
	c.text("description")
	if c.need("owner", "every rule needs an owner and a documented response") {
		r.owner = c.text("owner")
	}
	if c.need("response", "every rule needs a documented response: a file beside the rules or an https address") {
		r.response = c.text("response")
		if r.response != "" && !strings.HasPrefix(r.response, "https://") {
			if _, err := os.Stat(filepath.Join(filepath.Dir(l.src.file), r.response)); err != nil {
				c.fault("response", "there is no file %q in the folder of the rules; write down there what to do when this rule fires", r.response)
			}
		}
	}
	state := c.oneOf("state", "active", "shadow", "off")
	r.off, r.shadow = state == "off", state == "shadow"
	r.stateKey = r.name
	if r.shadow {
		r.stateKey += " (shadow)"
	}
	r.tenants = l.tenants
	if c.vals["tenants"] != nil {
		r.tenants = l.tenantIDs(c)
	}
	l.sendTo(r, c)
	l.limits(r, c)
}

func (l *loader) sendTo(r *rule, c *section) {
	if !c.need("send_to", "the name of a destination of the configuration") {
		return
	}
	r.sendTo = c.texts("send_to")
	for i, d := range r.sendTo {
		n := c.vals["send_to"]
		if n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n = n.Content[i]
		}
		switch {
		case strings.ContainsAny(d, ":/., \t\"'()"):
			l.src.fault(n, c.at("send_to"), "%q is no name of a destination; addresses and expressions are not possible here", d)
		case l.known.Destinations != nil && !slices.Contains(l.known.Destinations, d):
			l.src.fault(n, c.at("send_to"), "unknown destination %q%s", d, didYouMean(d, l.known.Destinations))
		case slices.Contains(r.sendTo[:i], d):
			l.src.fault(n, c.at("send_to"), "destination %q stands here twice", d)
		}
	}
}

func (l *loader) limits(r *rule, c *section) {
	r.limits.cooldown = c.duration("cooldown", time.Second)
	if n := c.vals["dedupe_for"]; n != nil && n.Value != "forever" {
		r.limits.dedupeFor = c.duration("dedupe_for", time.Second)
	}
	if n := c.vals["cap"]; n != nil {
		s := l.src.section(n, c.at("cap"), "max", "per")
		if s.need("max", "how many are sent at most") && s.need("per", "in which time") {
			r.limits.capMax = s.integer("max", 1, maxCap)
			r.limits.capPer = s.duration("per", time.Second)
		}
	}
	if n := c.vals["digest"]; n != nil {
		if !r.limits.any() {
			l.src.fault(n, c.at("digest"), "a digest tells what cooldown or cap held back, but the rule has neither")
		}
		s := l.src.section(n, c.at("digest"), "after", "payload")
		if r.limits.digestAfter = s.duration("after", time.Second); s.vals["after"] == nil {
			r.limits.digestAfter = max(r.limits.cooldown, r.limits.capPer)
		}
		if p := s.vals["payload"]; p != nil {
			sc := l.scope(nil, map[string]*types.Type{"digest": types.NewObjectType("digest")})
			r.digest = sc.template(l.src, p, s.at("payload"), 0)
		}
	}
}

// eventRule reads what only event rules have.
func (l *loader) eventRule(r *rule, c *section) {
	on := l.on(c)
	sc := l.scope(on, map[string]*types.Type{"event": eventType})
	t := take{on: on, listener: listener{rule: r}}
	if n := c.vals["match"]; n != nil {
		t.match = sc.compile(l.src, n, c.at("match"), condition)
		l.lintMatch(n, c.at("match"), on)
	}
	r.takes = []take{t}
	if n := c.vals["subject"]; n != nil {
		r.subject = sc.compile(l.src, n, c.at("subject"), key)
	}
	if n := c.vals["dedupe_key"]; n != nil {
		r.dedupeKey = sc.compile(l.src, n, c.at("dedupe_key"), key)
	}
	if n := c.vals["payload"]; n != nil {
		r.payload = sc.template(l.src, n, c.at("payload"), 0)
	}
	if r.limits.any() && r.subject == nil {
		l.warn(c.node, c.where, "cooldown and cap without a subject hold for the rule as a whole; all batches with a match wait for each other. Add subject: whom it is about")
	}
	if slices.Equal(on, []string{"*"}) && !r.limits.any() {
		l.warn(c.vals["on"], c.at("on"), "every event that matches makes a message, also of names that nobody thought of. Add cap or cooldown, or list the names")
	}
}

// on reads the event names that a rule listens to.
func (l *loader) on(c *section) []string {
	if !c.need("on", "the names of the events to look at") {
		return nil
	}
	on := c.texts("on")
	for _, name := range on {
		if name == "*" {
			if len(on) > 1 {
				c.fault("on", `"*" stands for all names; it stands alone`)
			}
			l.warn(c.vals["on"], c.at("on"), `"*" costs an evaluation for every event; list the names if they are known`)
			continue
		}
		if l.events != nil && l.events[name] == nil {
			known := make([]string, 0, len(l.events))
			for k := range l.events {
				known = append(known, k)
			}
			c.fault("on", "event %q is not declared in the events section%s", name, didYouMean(name, known))
		}
	}
	return on
}

func (l *loader) warn(n *yaml.Node, where, format string, args ...any) {
	l.warnings = append(l.warnings, LoadError{l.src.file, n.Line, n.Column, where, fmt.Sprintf(format, args...)})
}

// hashNode gives 16 hexadecimal digits that change with the content of a rule and its defaults, and not with comments,
// quoting, layout, tests or the order of keys.
func hashNode(n *yaml.Node, defaults *section) string {
	h := sha256.New()
	writeNode(h, n)
	if defaults != nil {
		writeNode(h, defaults.node)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func writeNode(w io.Writer, n *yaml.Node) {
	n = resolve(n)
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
