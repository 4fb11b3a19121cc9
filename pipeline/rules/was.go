package rules

import (
	"fmt"
	"strings"

	"sluice.example/sluice/internal/yamlfile"
)

// origin reads was: the id under which the rule began, which is where its state is kept.
func (l *loader) origin(r *Rule, c *yamlfile.Section) {
	r.origin = r.Name
	if !c.Has("was") {
		return
	}
	was := c.String("was")
	ruleset, id, other := strings.Cut(was, "/")
	if !other {
		ruleset, id = l.ruleset, was
	}
	if !isName(ruleset) || !isName(id) {
		c.Fault("was", "%q is not the former id of the rule, like old-cart or old-shop/cart", was)
		return
	}
	if r.origin = ruleset + "/" + id; r.origin == r.Name {
		c.Fault("was", "that is the id that the rule has; was names a former one")
	}
}

// sharing finds rules that would keep their state under one name.
func (s *Set) sharing(loaders []*loader) {
	byState := map[string]*Rule{}
	for _, l := range loaders {
		for _, r := range l.rules {
			if r.Off {
				continue
			}
			first := byState[r.StateKey]
			if first == nil {
				byState[r.StateKey] = r
			} else if first.Name != r.Name {
				at := r
				if at.origin == at.Name {
					at = first
				}
				l.src.FaultAt(at.place.Line, at.place.Column, at.place.Where, "%s and %s would share their timers, keys and "+
					"counts, which are those of %s; one rule can carry them on", first.Name, r.Name, r.origin)
			}
		}
	}
}

// Renamed is a rule that has another id than before.
type Renamed struct {
	Rule, Before *Rule
	// Kept: it carries on the state of the rule before. Otherwise it begins anew, and Message says what that does.
	Kept    bool
	Message yamlfile.Fault
}

// Renames compares with the rules that were in force before, which may be nil: it returns the rules whose id changed,
// or that look so.
func (s *Set) Renames(before *Set) []Renamed {
	if before == nil {
		return nil
	}
	now, then := map[string]bool{}, map[string]bool{}
	for _, r := range s.rules {
		now[r.origin] = true
	}
	for _, r := range before.rules {
		then[r.origin] = true
	}
	var out []Renamed
	for _, r := range s.rules {
		for _, b := range before.rules {
			found := Renamed{Rule: r, Before: b, Message: r.place}
			switch {
			case r.origin == b.origin:
				if r.Name == b.Name {
					continue
				}
				found.Kept = true
				found.Message.Message = fmt.Sprintf("carries on what %s knows: timers, keys, cooldowns and counts", b.Name)
			case then[r.origin] || now[b.origin]:
				continue
			case r.Name == b.Name, r.origin == b.Name:
				found.Message.Message = fmt.Sprintf("%s keeps its state under %s, and this rule would begin anew: %s. "+
					"Write was: %s", b.Name, b.origin, r.anew(), r.former(b))
			case r.Kind == b.Kind && r.shape == b.shape:
				found.Message.Message = fmt.Sprintf("looks like %s under another id, and would begin anew: %s. "+
					"Write was: %s if it is that rule", b.Name, r.anew(), r.former(b))
			default:
				continue
			}
			out = append(out, found)
			break
		}
	}
	return out
}

// former is what was: has to name for the state of another rule.
func (r *Rule) former(b *Rule) string {
	ruleset, _, _ := strings.Cut(r.Name, "/")
	return strings.TrimPrefix(b.origin, ruleset+"/")
}

// anew says what it does that a rule begins without state.
func (r *Rule) anew() string {
	switch {
	case r.Absence != nil:
		return "who waited within its lookback gets the message again"
	case r.Rate != nil:
		return "its counts are read from the stored events, and what fires now fires again"
	}
	return "keys, cooldowns and caps are forgotten, so it may send again what was sent"
}

// shapeKeys are what makes rules of a kind look like each other.
var shapeKeys = map[string][]string{
	"event":   {"on", "match", "subject", "dedupe_key"},
	"absence": {"trigger", "cancel", "activity", "key", "anchor"},
	"rate":    {"numerator", "denominator", "count"},
}
