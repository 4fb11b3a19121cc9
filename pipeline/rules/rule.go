package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline/rules/expr"
)

// MaxCap bounds cap.max: that many moments are kept of a subject.
const MaxCap = 50

// maxDuration bounds every length of time in a rule: ten years.
const maxDuration = 3660 * 24 * time.Hour

// DefaultMaxAge is the max_age of an event rule that has none of its own: with clients that were offline over a weekend
// an event is still of now, and what comes later is history that somebody brings in. A guess.
const DefaultMaxAge = 72 * time.Hour

// ruleKeys are the keys that every kind has.
var ruleKeys = []string{"id", "kind", "state", "owner", "response", "description", "tenants", "send_to", "payload",
	"cooldown", "cap", "digest", "dedupe_for", "tests", "was", "reviewed_by", "priority"}

// defaultKeys are those that a file can set for all its rules.
var defaultKeys = []string{"owner", "response", "state", "dedupe_for", "max_age", "grace", "lookback"}

var kindKeys = map[string][]string{
	"event": {"on", "match", "subject", "dedupe_key", "max_age"},
	"absence": {"trigger", "cancel", "activity", "key", "within", "lookback", "grace", "anchor", "once_per", "recheck",
		"subject"},
	"rate": {"numerator", "denominator", "count", "window", "every", "settle", "baseline", "minimum", "fire", "clear",
		"no_data", "inhibited_by", "repeat", "severity"},
}

func (l *loader) rule(n *yaml.Node, i int) *Rule {
	r := &Rule{}
	c := l.src.Section(n, fmt.Sprintf("rules[%d]", i))
	if c.Require("id", "its name") {
		if r.ID = l.name(c, "id"); r.ID != "" {
			c.Where = "rules[" + r.ID + "]"
		}
	}
	r.Kind = c.OneOf("kind", "event", "absence", "rate")
	c.Allow(append(slices.Clone(ruleKeys), kindKeys[r.Kind]...)...)
	r.Name = l.ruleset + "/" + r.ID
	r.Hash = hashNode(n, l.defaults)
	l.origin(r, c)
	r.place = yamlfile.Fault{File: l.src.Name, Line: n.Line, Column: n.Column, Where: c.Where}
	l.common(r, c)
	r.shape = contentOf(c, shapeKeys[r.Kind]...)
	switch r.Kind {
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
func (l *loader) common(r *Rule, c *yamlfile.Section) {
	if l.defaults != nil {
		for _, k := range defaultKeys {
			known := slices.Contains(ruleKeys, k) || slices.Contains(kindKeys[r.Kind], k)
			if v := l.defaults.Get(k); v != nil && known {
				c.Default(k, v)
			}
		}
	}
	c.String("description")
	if c.Require("owner", "every rule needs an owner and a documented response") {
		r.Owner = c.String("owner")
	}
	if c.Require("response", "every rule needs a documented response: a file beside the rules or an https address") {
		r.Response = c.String("response")
		if r.Response != "" && !strings.HasPrefix(r.Response, "https://") {
			info, err := os.Stat(filepath.Join(filepath.Dir(l.src.Name), r.Response))
			switch {
			case !filepath.IsLocal(r.Response):
				c.Fault("response", "%q leads out of the folder of the rules", r.Response)
			case err != nil || !info.Mode().IsRegular():
				c.Fault("response", "there is no file %q in the folder of the rules; "+
					"write down there what to do when this rule fires", r.Response)
			}
		}
	}
	state := c.OneOf("state", "active", "shadow", "off")
	r.Off = state == "off"
	r.Shadow = state == "shadow"
	r.Tenants = l.tenants
	if c.Has("tenants") {
		r.Tenants = l.tenantIDs(c)
	}
	l.sendTo(r, c)
	l.review(r, c)
	r.StateKey = r.origin
	if r.Shadow {
		r.StateKey += " (shadow)"
	}
	l.limits(r, c)
	r.priority = c.Int("priority", 0, -1000, 1000)
}

func (l *loader) sendTo(r *Rule, c *yamlfile.Section) {
	if !c.Require("send_to", "the name of a destination of the configuration") {
		return
	}
	r.SendTo = c.Strings("send_to")
	known := l.options.Destinations
	for i, d := range r.SendTo {
		n := c.Get("send_to")
		if n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n = n.Content[i]
		}
		switch {
		case strings.ContainsAny(d, ":/., \t\"'()"):
			l.src.Fault(n, c.At("send_to"),
				"%q is not the name of a destination; addresses and expressions are not possible here", d)
		case known != nil && !slices.Contains(known, d):
			l.src.Fault(n, c.At("send_to"), "unknown destination %q%s", d, spell.DidYouMean(d, known))
		case slices.Contains(r.SendTo[:i], d):
			l.src.Fault(n, c.At("send_to"), "destination %q is listed twice", d)
		}
	}
}

func (l *loader) limits(r *Rule, c *yamlfile.Section) {
	r.Limits.Cooldown = c.Duration("cooldown", 0, time.Second, maxDuration)
	if n := c.Get("dedupe_for"); n != nil && n.Value != "forever" {
		r.Limits.DedupeFor = c.Duration("dedupe_for", 0, time.Second, maxDuration)
	}
	if s := c.Section("cap", "max", "per"); s != nil {
		if s.Require("max", "how many are sent at most") && s.Require("per", "in which time") {
			r.Limits.CapMax = s.Int("max", 1, 1, MaxCap)
			r.Limits.CapPer = s.Duration("per", 0, time.Second, maxDuration)
		}
	}
	if s := c.Section("digest", "after", "payload"); s != nil {
		if !r.Limits.Any() {
			c.Fault("digest", "a digest reports what cooldown or cap held back, and the rule has neither")
		}
		r.Limits.DigestAfter = s.Duration("after", max(r.Limits.Cooldown, r.Limits.CapPer), time.Second, maxDuration)
		if p := s.Get("payload"); p != nil {
			r.digest = l.scope(expr.Digest, nil).Template(l.src, p, s.At("payload"))
		}
	}
}

// eventRule reads what only event rules have.
func (l *loader) eventRule(r *Rule, c *yamlfile.Section) {
	on := l.on(c)
	sc := l.scope(expr.Event, on)
	t := take{on: on, listener: listener{rule: r}}
	if n := c.Get("match"); n != nil {
		t.match = sc.Condition(l.src, n, c.At("match"))
		l.lintMatch(n, c.At("match"), on)
	}
	r.takes = []take{t}
	if n := c.Get("max_age"); n == nil || n.Value != "none" {
		r.MaxAge = c.Duration("max_age", DefaultMaxAge, time.Second, maxDuration)
	}
	if n := c.Get("subject"); n != nil {
		r.subject = l.key(sc, n, c.At("subject"))
	}
	if n := c.Get("dedupe_key"); n != nil {
		r.dedupeKey = l.key(sc, n, c.At("dedupe_key"))
	}
	if n := c.Get("payload"); n != nil {
		r.payload = sc.Template(l.src, n, c.At("payload"))
	}
	if r.Limits.Any() && r.subject == nil {
		l.warn(c.Node(), c.Where, "cooldown and cap without a subject hold for the rule as a whole; "+
			"all batches with a match wait for each other. Add subject: whom it is about")
	}
	if slices.Equal(on, []string{"*"}) && !r.Limits.Any() {
		l.warn(c.Get("on"), c.At("on"), "every event that matches makes a message, also of names that nobody thought of. "+
			"Add cap or cooldown, or list the names")
	}
}

// side reads a section that selects events: trigger, cancel, activity, or what is counted.
func (l *loader) side(r *Rule, c *yamlfile.Section, name string, as Role) take {
	t := take{listener: listener{rule: r, role: as}}
	if !c.Require(name, "which events it is, as on and match") {
		return t
	}
	s := c.Section(name, "on", "match")
	t.on = l.on(s)
	if n := s.Get("match"); n != nil {
		t.match = l.scope(expr.Event, t.on).Condition(l.src, n, s.At("match"))
		l.lintMatch(n, s.At("match"), t.on)
	}
	return t
}

// on reads the event names that a rule listens to.
func (l *loader) on(c *yamlfile.Section) []string {
	if !c.Require("on", "the names of the events to look at") {
		return nil
	}
	on := c.Strings("on")
	for i, name := range on {
		if slices.Contains(on[:i], name) {
			c.Fault("on", "event %q is listed twice", name)
			continue
		}
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
	l.warnAt(n.Line, n.Column, where, format, args...)
}

func (l *loader) warnAt(line, col int, where, format string, args ...any) {
	l.warnings = append(l.warnings, yamlfile.Fault{
		File: l.src.Name, Line: line, Column: col, Where: where, Message: fmt.Sprintf(format, args...),
	})
}
