package rules

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline/rules/expr"
)

// Quota is a limit over several rules: how often one subject gets a message of any of them, and at which hours. It is
// an entry of limits: in a file.
type Quota struct {
	// Name is ruleset/id.
	Name string
	// AtMost messages about a subject are sent within Per; 0 is no such limit.
	AtMost int
	Per    time.Duration
	// Defer: what is over the limit, or due at a quiet hour, is sent later, and otherwise not at all.
	Defer bool
	// digest makes the messages that tell of what was over the limit, and shadow those of what shadows had over it; nil
	// where that is not told.
	digest, shadow *Rule
	// To is the destination whose messages alone are under the quota; empty for those of its rules to any.
	To      string
	quiet   *quietHours
	subject *expr.Program
	// zone is the time zone of the quiet hours where it is that of the event.
	zone *expr.Program
	// hash changes with its content.
	hash string
}

// quietHours are from one time of the day to another, which may be on the next day.
type quietHours struct {
	from, to time.Duration
	zone     *time.Location
}

// end returns when the quiet hours of a time zone that at lies in are over; the zero time where it lies in none.
func (q *quietHours) end(at time.Time, zone *time.Location) time.Time {
	local := at.In(zone)
	for day := -1; day <= 0; day++ {
		clock := func(d time.Duration, more int) time.Time {
			return time.Date(local.Year(), local.Month(), local.Day()+day+more, int(d/time.Hour), int(d%time.Hour/time.Minute),
				0, 0, zone)
		}
		next := 0
		if q.to <= q.from {
			next = 1
		}
		if begin, end := clock(q.from, 0), clock(q.to, next); !at.Before(begin) && at.Before(end) {
			return end
		}
	}
	return time.Time{}
}

// Under is a quota that a match has to be within, and whom it is about.
type Under struct {
	Quota *Quota
	// State is under what the moments of its subjects are kept; shadows use up nothing of what is sent.
	State   string
	Subject string
	// zone is that of the quiet hours.
	zone *time.Location
}

// told returns what makes the digest of what is over the limit; nil if that is not told.
func (u *Under) told() *Rule {
	if d := u.Quota.shadow; d != nil && d.StateKey == u.State {
		return d
	}
	return u.Quota.digest
}

// kept reports whether something is remembered of the subject.
func (u *Under) kept() bool { return u.Counted() || u.Quota.digest != nil }

// Quiet reports whether a time lies in the quiet hours.
func (u *Under) Quiet(at time.Time) bool { return !u.quietUntil(at).IsZero() }

// quietUntil returns when the quiet hours that at lies in are over; the zero time where it lies in none.
func (u *Under) quietUntil(at time.Time) time.Time {
	q := u.Quota.quiet
	switch {
	case q == nil:
		return time.Time{}
	case u.zone != nil:
		return q.end(at, u.zone)
	}
	return q.end(at, q.zone)
}

// ByPriority returns the order in which matches ask their quotas: the rule with the highest priority first.
func ByPriority(matches []Match) []int {
	order := make([]int, 0, len(matches))
	for i := range matches {
		if len(matches[i].Under) > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return matches[b].Rule.priority - matches[a].Rule.priority })
	return order
}

// within adds the quotas of a rule to a match about an event.
func (f *Findings) within(m *Match) bool {
	for _, q := range m.Rule.quotas {
		u := Under{Quota: q, State: q.Name}
		if m.Rule.Shadow {
			u.State += " (shadow)"
		}
		if q.subject != nil {
			var ok bool
			if u.Subject, ok = f.key(m.Batch, m.Rule, q.subject, "limits["+q.Name+"].subject"); !ok {
				return false
			}
		}
		if q.zone != nil {
			u.zone = zoneNamed(q.zone, &f.vars)
		}
		m.Under = append(m.Under, u)
	}
	return true
}

// zoneNamed is the time zone that an event names; UTC where it names none that exists.
func zoneNamed(p *expr.Program, v *expr.Vars) *time.Location {
	name, err := p.Text(v)
	if err != nil || !mayBeZone(name) {
		return time.UTC
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return time.UTC
	}
	zones.Store(name, zone)
	return zone
}

// zones are the time zones that events named. Each has one name that mayBeZone, so there are some hundreds.
var zones sync.Map

// mayBeZone reports whether a text of an event is fit to be looked up as a file's name.
func mayBeZone(name string) bool {
	odd := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/_+-", r))
	})
	return odd < 0 && len(name) <= 64 && name != "Local" && !strings.Contains(name, "//") && !strings.HasSuffix(name, "/")
}

// quotas reads limits, after the rules.
func (l *loader) quotas(n *yaml.Node) {
	seen := map[string]bool{}
	for i, item := range l.src.Items(n, "limits", "a list of limits") {
		q := &Quota{}
		c := l.src.Section(item, fmt.Sprintf("limits[%d]", i), "id", "subject", "at_most", "per", "send_to", "rules", "over",
			"hours", "digest")
		if c.Require("id", "its name") {
			id := l.name(c, "id")
			c.Where = "limits[" + id + "]"
			if q.Name = l.ruleset + "/" + id; seen[id] {
				c.Fault("id", "there is a limit %q already", id)
			}
			seen[id] = true
			q.hash = hashNode(item, nil)
		}
		covered := l.covered(q, c)
		sc := l.scope(expr.Event, heardBy(covered))
		l.quota(q, c, sc)
		if over := c.String("over"); over == "digest" || c.Has("digest") {
			l.quotaDigest(q, c, sc, over)
		}
		for _, r := range covered {
			r.quotas = append(r.quotas, q)
		}
	}
}

// heardBy are the names of the events that lead to decisions of rules: of absence rules, those of their trigger.
func heardBy(covered []*Rule) (on []string) {
	if len(covered) == 0 {
		return []string{"*"} // which is a fault already
	}
	for _, r := range covered {
		if len(r.takes) > 0 {
			on = append(on, r.takes[0].on...)
		}
	}
	slices.Sort(on)
	return slices.Compact(on)
}

// quota reads what a limit allows. Its expressions see the events that its rules decide about.
func (l *loader) quota(q *Quota, c *yamlfile.Section, sc *expr.Scope) {
	q.Defer = c.OneOf("over", "suppress", "defer", "digest") == "defer"
	if c.Has("at_most") || !c.Has("hours") {
		if c.Require("at_most", "how many messages about a subject") && c.Require("per", "in which time") &&
			c.Require("subject", "whom it is about, for example event.user_id") {
			q.AtMost = c.Int("at_most", 1, 1, MaxCap)
			q.Per = c.Duration("per", 0, time.Second, maxDuration)
			q.subject = l.key(sc, c.Get("subject"), c.At("subject"))
		}
	}
	if s := c.Section("hours", "from", "to", "timezone"); s != nil {
		l.quietHours(q, s, sc)
	}
}

// quotaDigest reads what is sent about what was over the limit.
func (l *loader) quotaDigest(q *Quota, c *yamlfile.Section, sc *expr.Scope, over string) {
	if over != "digest" {
		c.Fault("digest", "what is over this limit is not told; add over: digest")
	}
	if q.AtMost == 0 && c.Has("hours") && c.Require("subject", "whose digest it is, for example event.user_id") {
		q.subject = l.key(sc, c.Get("subject"), c.At("subject"))
	}
	_, id, _ := strings.Cut(q.Name, "/")
	if slices.ContainsFunc(l.rules, func(r *Rule) bool { return r.ID == id }) {
		c.Fault("id", "there is a rule %q, and messages of the digest would look like those of the rule", id)
	}
	r := &Rule{ID: id, Name: q.Name, StateKey: q.Name, Hash: q.hash}
	s := c.Section("digest", "send_to", "payload")
	switch {
	case q.To != "":
		r.SendTo = []string{q.To}
		if s != nil && s.Has("send_to") {
			s.Fault("send_to", "the digest goes to %q, over which the limit is", q.To)
		}
	case s == nil:
		c.Fault("over", "a limit over rules has to say where its digest goes: digest: {send_to: mail}")
	default:
		l.sendTo(r, s)
	}
	for _, to := range r.SendTo {
		if slices.Contains(l.options.Irreversible, to) {
			c.Fault("over", "what %s does can't be taken back (irreversible), and nobody reviews a digest", to)
		}
	}
	if s != nil && s.Has("payload") {
		r.digest = l.scope(expr.Digest, nil).Template(l.src, s.Get("payload"), s.At("payload"))
	}
	shadow := *r
	shadow.Shadow, shadow.StateKey = true, q.Name+" (shadow)"
	q.digest, q.shadow = r, &shadow
}

func (l *loader) quietHours(q *Quota, s *yamlfile.Section, sc *expr.Scope) {
	h := &quietHours{zone: time.UTC}
	q.quiet = h
	for _, end := range []struct {
		key string
		at  *time.Duration
	}{{"from", &h.from}, {"to", &h.to}} {
		if s.Require(end.key, "a time of the day, like 21:00") {
			at, err := time.Parse("15:04", s.String(end.key))
			if err != nil {
				s.Fault(end.key, "%q is not a time of the day, like 21:00", s.String(end.key))
			}
			*end.at = time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute
		}
	}
	if h.from == h.to && s.Has("from") {
		s.Fault("to", "hours that begin and end at one time would never be over")
	}
	name := s.String("timezone")
	if name == "" {
		return
	}
	if strings.Contains(name, "event.") {
		q.zone = l.key(sc, s.Get("timezone"), s.At("timezone"))
		return
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		s.Fault("timezone", "%q is not a time zone; use a name such as Europe/Berlin, or an expression such as "+
			"event.properties.timezone", name)
		return
	}
	h.zone = zone
}

// covered are the rules that a limit is over: those it names, or those that send to a destination.
func (l *loader) covered(q *Quota, c *yamlfile.Section) (covered []*Rule) {
	if c.Has("rules") == c.Has("send_to") {
		l.src.Fault(c.Node(), c.Where, "a limit is over rules, or over what is sent to one destination (send_to)")
		return nil
	}
	q.To = c.String("send_to")
	if to := q.To; to != "" {
		for _, r := range l.rules {
			if r.Rate == nil && slices.Contains(r.SendTo, to) {
				covered = append(covered, r)
			}
		}
		if covered == nil {
			c.Fault("send_to", "no rule of this file sends to %q", to)
		}
		return covered
	}
	var ids []string
	for _, r := range l.rules {
		ids = append(ids, r.ID)
	}
	for _, id := range c.Strings("rules") {
		at := slices.Index(ids, id)
		switch {
		case at < 0:
			c.Fault("rules", "there is no rule %q in this file%s", id, spell.DidYouMean(id, ids))
		case l.rules[at].Rate != nil:
			c.Fault("rules", "%q is a rate rule, whose messages are about no subject", id)
		case slices.Contains(covered, l.rules[at]):
			c.Fault("rules", "%q is listed twice", id)
		default:
			covered = append(covered, l.rules[at])
		}
	}
	return covered
}
