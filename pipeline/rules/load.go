package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline/rules/expr"
)

// Load reads a rules file, or every *.yaml and *.yml file of a folder. The error, if any, is yamlfile.Faults and holds
// everything that is wrong; no part of a faulty file comes into force. The tests in the rules are read and not run:
// replay.Load does both.
func Load(path string, o Options) (*Set, error) {
	files, err := ruleFiles(path)
	if err != nil {
		return nil, yamlfile.Faults{{File: path, Message: err.Error()}}
	}
	set := &Set{maxPayload: o.MaxPayloadBytes}
	var faults yamlfile.Faults
	rulesets := map[string]string{}
	var loaders []*loader
	for _, file := range files {
		l := &loader{options: o, scopes: map[string]*expr.Scope{}, keys: map[keyText]*expr.Program{}}
		l.src = yamlfile.Read(file)
		l.src.Hint = noAddresses
		if l.src.Root() != nil {
			l.file()
		} else if l.src.Err() == nil {
			l.src.FaultAt(1, 1, "", "the file is empty; it starts with version: 1")
		}
		if first, ok := rulesets[l.ruleset]; ok {
			l.src.FaultAt(1, 1, "ruleset", "ruleset %q is already that of %s; every file needs a name of its own",
				l.ruleset, first)
		} else if l.ruleset != "" {
			rulesets[l.ruleset] = file
		}
		loaders = append(loaders, l)
	}
	set.sharing(loaders)
	for _, l := range loaders {
		faults = append(faults, l.src.Faults()...)
		set.warnings = append(set.warnings, l.warnings...)
		set.rules = append(set.rules, l.rules...)
	}
	if err := faults.Err(); err != nil {
		return nil, err
	}
	set.warnings.Sort()
	set.index()
	return set, nil
}

// Sum is a checksum of what Load would read: it changes with any of the files, and with their names.
func Sum(path string) (sum [sha256.Size]byte, err error) {
	files, err := ruleFiles(path)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	for _, name := range files {
		text, err := yamlfile.Text(name)
		if err != nil {
			return sum, err
		}
		one := sha256.Sum256(text)
		fmt.Fprintf(h, "%q %x\n", name, one)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// ruleFiles are the files that a path stands for, sorted.
func ruleFiles(path string) ([]string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml"} {
		found, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the folder holds no *.yaml file")
	}
	slices.Sort(files)
	return files, nil
}

func (s *Set) index() {
	s.every, s.byTenant = &index{byName: map[string][]listener{}}, map[int32]*index{}
	s.byState, s.byLimit = map[string]*Rule{}, map[string]*Rule{}
	h := sha256.New()
	for _, r := range s.rules {
		fmt.Fprintln(h, r.Name, r.Hash)
		for _, q := range r.quotas {
			fmt.Fprintln(h, q.Name, q.hash)
		}
		for _, t := range r.Tenants {
			if s.byTenant[t] == nil {
				s.byTenant[t] = &index{byName: map[string][]listener{}}
			}
		}
	}
	s.fingerprint = hex.EncodeToString(h.Sum(nil)[:6])
	for _, r := range s.rules {
		if r.Off {
			continue
		}
		s.byState[r.StateKey] = r
		for _, q := range r.quotas {
			if q.digest != nil {
				s.byLimit[q.digest.StateKey], s.byLimit[q.shadow.StateKey] = q.digest, q.shadow
			}
		}
		if r.Absence != nil {
			s.absences = append(s.absences, r)
		}
		if r.Rate != nil {
			s.rates = append(s.rates, r)
		}
		if r.Tenants == nil {
			s.every.add(r)
			for _, idx := range s.byTenant {
				idx.add(r)
			}
		}
		for _, t := range r.Tenants {
			s.byTenant[t].add(r)
		}
	}
	s.rates = inhibitorsFirst(s.rates)
}

// inhibitorsFirst sorts rate rules so that those that keep others from firing are judged first. Where rules do so in a
// circle, the order of the file decides.
func inhibitorsFirst(rates []*Rule) []*Rule {
	byMetric := make(map[string]*Rule, len(rates))
	for _, r := range rates {
		byMetric[r.Rate.Metric] = r
	}
	sorted := make([]*Rule, 0, len(rates))
	seen := make(map[*Rule]bool, len(rates))
	var visit func(*Rule)
	visit = func(r *Rule) {
		if r == nil || seen[r] {
			return
		}
		seen[r] = true
		for _, metric := range r.Rate.Inhibitors {
			visit(byMetric[metric])
		}
		sorted = append(sorted, r)
	}
	for _, r := range rates {
		visit(r)
	}
	return sorted
}

func (x *index) add(r *Rule) {
	for _, t := range r.takes {
		for _, name := range t.on {
			if name == "*" {
				x.any = append(x.any, t.listener)
			} else {
				x.byName[name] = append(x.byName[name], t.listener)
			}
		}
	}
}

// loader reads one file.
type loader struct {
	src     *yamlfile.File
	options Options
	ruleset string
	tenants []int32
	// fileTenants is where tenants stands, nil if it does not.
	fileTenants *yaml.Node
	events      map[string]expr.Properties
	defaults    *yamlfile.Section
	rules       []*Rule
	warnings    yamlfile.Faults
	scopes      map[string]*expr.Scope
	// keys are those compiled without a fault or a warning; many rules have the same.
	keys map[keyText]*expr.Program
	// testEventsMade counts the events of tests.
	testEventsMade int
}

// noAddresses answers those who look for the address of a message in the rules.
func noAddresses(key string) string {
	switch key {
	case "url", "destination", "destinations", "webhook", "headers", "secret":
		return "; addresses are not part of the rules: name a destination of the configuration in send_to"
	}
	return ""
}

func (l *loader) file() {
	f := l.src.Top("version", "ruleset", "tenants", "defaults", "events", "rules", "limits")
	if f.Require("version", "version: 1") && f.String("version") != "1" {
		f.Fault("version", "expected version 1, got %s", yamlfile.Describe(f.Get("version")))
	}
	if f.Require("ruleset", "it is part of the identity of every rule") {
		l.ruleset = l.name(f, "ruleset")
	}
	l.tenants, l.fileTenants = l.tenantIDs(f), f.Get("tenants")
	l.defaults = f.Section("defaults", defaultKeys...)
	if n := f.Get("events"); n != nil {
		l.declarations(n)
	}
	if !f.Require("rules", "the list of rules") {
		return
	}
	ids := map[string]int{}
	for i, n := range l.src.Items(f.Get("rules"), "rules", "a list of rules") {
		r := l.rule(n, i)
		if r.ID == "" {
			continue
		}
		if line, ok := ids[r.ID]; ok {
			l.src.Fault(n, "rules["+r.ID+"]", "duplicate rule id %q, first on line %d", r.ID, line)
			continue
		}
		ids[r.ID] = n.Line
		l.rules = append(l.rules, r)
	}
	l.inhibitors()
	if n := f.Get("limits"); n != nil {
		l.quotas(n)
	}
}

// inhibitors finds the rules that others name in inhibited_by.
func (l *loader) inhibitors() {
	metrics := map[string]string{}
	for _, r := range l.rules {
		if r.Rate != nil && !r.Off {
			metrics[r.ID] = r.Rate.Metric
		}
	}
	for _, r := range l.rules {
		if r.Rate == nil {
			continue
		}
		for _, id := range r.Rate.inhibitedBy {
			m, ok := metrics[id]
			if !ok || id == r.ID {
				r.Rate.section.Fault("inhibited_by", "%q is not another rate rule of this file%s", id,
					spell.DidYouMean(id, slices.Collect(maps.Keys(metrics))))
			}
			r.Rate.Inhibitors = append(r.Rate.Inhibitors, m)
		}
		r.Rate.section = nil
	}
}

// name reads a name that is used in keys, metrics and paths.
func (l *loader) name(c *yamlfile.Section, key string) string {
	s := c.String(key)
	if s != "" && !isName(s) {
		c.Fault(key, "%q is not a name; use up to 64 of a-z, 0-9, - and _", s)
		return ""
	}
	return s
}

func isName(s string) bool {
	for i, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || i > 0 && (r == '-' || r == '_')) || i >= 64 {
			return false
		}
	}
	return s != ""
}

func (l *loader) tenantIDs(c *yamlfile.Section) []int32 {
	names := c.Strings("tenants")
	if names == nil {
		return nil
	}
	known := l.options.Tenants
	ids := make([]int32, 0, len(names))
	for _, name := range names {
		id, ok := known[name]
		if !ok && known != nil {
			c.Fault("tenants", "unknown tenant %q%s", name, spell.DidYouMean(name, slices.Collect(maps.Keys(known))))
		}
		if ok && slices.Contains(ids, id) {
			c.Fault("tenants", "tenant %q is listed twice", name)
		} else if ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// declarations reads the events section: which events there are, and the types of their properties.
func (l *loader) declarations(n *yaml.Node) {
	l.events = map[string]expr.Properties{}
	for k, v := range l.src.Pairs(n, "events") {
		props := expr.Properties{}
		l.events[k.Value] = props
		if v.Tag == "!!null" {
			continue
		}
		where := "events." + k.Value
		for p, t := range l.src.Pairs(v, where) {
			declared, ok := expr.TypeNamed(t.Value)
			if !ok {
				l.src.Fault(t, where+"."+p.Value, "%s is not a type; there are %s%s", yamlfile.Describe(t),
					strings.Join(expr.TypeNames, ", "), spell.DidYouMean(t.Value, expr.TypeNames))
				declared, _ = expr.TypeNamed("any")
			}
			props[p.Value] = declared
		}
	}
}

// scope is the scope of expressions, which know the properties of events with these names.
func (l *loader) scope(about expr.About, on []string) *expr.Scope {
	if l.events == nil {
		on = nil // nothing is known of any event, so that one scope, which is costly to make, does for all
	}
	cacheKey := fmt.Sprintf("%d %q", about, slices.Sorted(slices.Values(on)))
	sc := l.scopes[cacheKey]
	if sc == nil {
		sc = expr.NewScope(about, l.properties(on))
		sc.Warn = func(line, col int, where, message string) { l.warnAt(line, col, where, "%s", message) }
		l.scopes[cacheKey] = sc
	}
	return sc
}

// keyText is a key as it stands in the file.
type keyText struct {
	scope *expr.Scope
	tag   string
	text  string
}

// key compiles a key or subject.
func (l *loader) key(sc *expr.Scope, n *yaml.Node, where string) *expr.Program {
	as := keyText{sc, n.Tag, n.Value}
	if p := l.keys[as]; p != nil && n.Kind == yaml.ScalarNode {
		return p
	}
	warned := len(l.warnings)
	p := sc.Key(l.src, n, where)
	if p != nil && len(l.warnings) == warned {
		l.keys[as] = p
	}
	return p
}

// properties is the union of what the events of these names declare; nil where one of them declares nothing, or there
// are no declarations at all.
func (l *loader) properties(on []string) expr.Properties {
	if l.events == nil {
		return nil
	}
	union := expr.Properties{}
	for _, name := range on {
		declared, ok := l.events[name]
		if !ok {
			return nil
		}
		union.Merge(declared)
	}
	return union
}
