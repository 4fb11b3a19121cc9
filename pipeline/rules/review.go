package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
)

// What a destination does may be impossible to take back: mail, money, accounts. A rule that sends there needs a key by
// which it can't send twice, and somebody who read it as it is. Until then it is a shadow.

// Review is who read a rule, and which version of it.
type Review struct {
	// Needed: the rule sends to a destination that can't take back what it does.
	Needed bool
	// By is who reviewed the rule last; empty if nobody did. Done: it has not changed since.
	By   string
	Done bool
	// Digest is what reviewed_by has to hold: 16 hexadecimal digits that change with the rule, its defaults and its
	// tenants, and not with comments, layout, tests or who reviewed it.
	Digest string
}

// review reads reviewed_by, and makes a shadow of a rule that needs a review and has none.
func (l *loader) review(r *Rule, c *yamlfile.Section) {
	r.Review.Digest = l.reviewDigest(c.Node())
	if s := c.Section("reviewed_by", "name", "digest"); s != nil {
		if s.Require("name", "who reviewed the rule") {
			r.Review.By = s.String("name")
		}
		s.Require("digest", `"pipeline rules review" writes it`)
		r.Review.Done = r.Review.By != "" && s.String("digest") == r.Review.Digest
	}
	at := slices.IndexFunc(r.SendTo, func(d string) bool { return slices.Contains(l.options.Irreversible, d) })
	if at < 0 {
		return
	}
	r.Review.Needed = true
	to := r.SendTo[at]
	if r.Kind == "rate" || r.Kind == "event" && !c.Has("dedupe_key") {
		l.src.Fault(c.Get("send_to"), c.At("send_to"), "what %s does can't be taken back (irreversible), so the rule "+
			"needs a dedupe_key, or once_per of an absence rule: what must not happen twice", to)
	}
	if r.Review.Done || r.Off {
		return
	}
	why := "nobody has reviewed it"
	if r.Review.By != "" {
		why = "it has changed since " + r.Review.By + " reviewed it"
	}
	if r.meantAsShadow = r.Shadow; !r.Shadow {
		l.warn(c.Node(), c.Where, "it sends to %s, which is irreversible, and %s: until then it is a shadow, which sends "+
			"nothing. Read it, and write: pipeline rules review %s --by NAME", to, why, r.Name)
	}
	r.Shadow = true
}

// reviewDigest is the digest of what is reviewed.
func (l *loader) reviewDigest(n *yaml.Node) string {
	h := sha256.New()
	reviewed := *yamlfile.Resolve(n)
	reviewed.Content = nil
	for i := 0; i+1 < len(yamlfile.Resolve(n).Content); i += 2 {
		if k := yamlfile.Resolve(n).Content[i]; k.Value != "reviewed_by" {
			reviewed.Content = append(reviewed.Content, k, yamlfile.Resolve(n).Content[i+1])
		}
	}
	writeNode(h, &reviewed)
	if l.defaults != nil {
		writeNode(h, l.defaults.Node())
	}
	if l.fileTenants != nil {
		writeNode(h, l.fileTenants)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// AwaitsReview reports whether the rule is a shadow only since nobody has reviewed it as it is.
func (r *Rule) AwaitsReview() bool { return r.Review.Needed && !r.Review.Done && !r.meantAsShadow }

// Place is the file and the line where the rule begins.
func (r *Rule) Place() (file string, line int) { return r.place.File, r.place.Line }

// Named returns a rule by its name, or by its id where only one has it; nil if there is none.
func (s *Set) Named(name string) *Rule {
	var found *Rule
	for _, r := range s.rules {
		switch {
		case r.Name == name:
			return r
		case r.ID == name && !strings.Contains(name, "/"):
			if found != nil {
				return nil
			}
			found = r
		}
	}
	return found
}
