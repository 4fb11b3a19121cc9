package evaluate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// Known is what the rest of the configuration tells about the names in a rules file.
type Known struct {
	// Tenants maps the names of the tenants to their ids. Nil: tenant names are not checked, and rules that name a
	// tenant apply to none.
	Tenants map[string]int32
	// Destinations are the names that send_to may use. Nil: they are not checked.
	Destinations []string
	// NoTests loads the rules although a test in them fails; see Set.Test.
	NoTests bool
}

// Set is the rules that are in force together. It never changes.
type Set struct {
	rules []*rule
	// byTenant has an index for each tenant that has rules of its own; others use every.
	byTenant map[int32]*index
	every    *index
	warnings yamlfile.Faults
	// byState finds a rule by what its state is kept under, byTimer by the name of its timers.
	byState, byTimer, byMetric map[string]*rule
	absences                   []pipeline.Absence
	rates                      []pipeline.Rate
	// fingerprint changes with the content of the rules.
	fingerprint string
}

// index finds who listens to an event name.
type index struct {
	byName map[string][]listener
	// any listens to every name.
	any []listener
}

// listener is a rule and what it does with an event of this name.
type listener struct {
	rule  *rule
	role  role
	match *program
}

// role is what an event is to a rule.
type role uint8

const (
	decides role = iota
	triggers
	cancels
	// goesOn is an event that shows that its key is not idle.
	goesOn
	numerator
	denominator
)

// Load reads a rules file, or every *.yaml and *.yml file of a folder. The error, if any, is yamlfile.Faults and holds
// everything that is wrong; no part of a faulty file comes into force.
func Load(path string, known Known) (*Set, error) {
	files := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		files = nil
		for _, pattern := range []string{"*.yaml", "*.yml"} {
			found, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return nil, yamlfile.Faults{{File: path, Message: err.Error()}}
			}
			files = append(files, found...)
		}
		if len(files) == 0 {
			return nil, yamlfile.Faults{{File: path, Message: "the folder holds no *.yaml file"}}
		}
	}
	slices.Sort(files)
	set := &Set{}
	var errs yamlfile.Faults
	rulesets := map[string]string{}
	for _, file := range files {
		l := &loader{known: known, scopes: map[string]*scope{}}
		l.src = yamlfile.Read(file)
		l.src.Hint = noAddresses
		if l.src.Root() != nil {
			l.file()
		} else if l.src.Err() == nil {
			l.src.FaultAt(1, 1, "", "the file is empty; it starts with version: 1")
		}
		if first, ok := rulesets[l.ruleset]; ok {
			l.src.FaultAt(1, 1, "ruleset", "ruleset %q is already that of %s; every file needs a name of its own", l.ruleset, first)
		} else if l.ruleset != "" {
			rulesets[l.ruleset] = file
		}
		errs = append(errs, l.src.Faults()...)
		set.warnings = append(set.warnings, l.warnings...)
		set.rules = append(set.rules, l.rules...)
	}
	if len(errs) > 0 {
		errs.Sort()
		return nil, errs
	}
	set.warnings.Sort()
	set.index()
	for _, r := range set.rules {
		for _, t := range r.tests {
			if known.NoTests || r.off {
				continue
			}
			if fault := t.run(set); fault != nil {
				errs = append(errs, *fault)
			}
		}
	}
	if len(errs) > 0 {
		errs.Sort()
		return nil, errs
	}
	return set, nil
}

// Warnings are what is not wrong but probably not meant.
func (s *Set) Warnings() yamlfile.Faults { return s.warnings }

func (s *Set) index() {
	s.every, s.byTenant = &index{byName: map[string][]listener{}}, map[int32]*index{}
	s.byState, s.byTimer, s.byMetric = map[string]*rule{}, map[string]*rule{}, map[string]*rule{}
	h := sha256.New()
	for _, r := range s.rules {
		fmt.Fprintln(h, r.name, r.hash)
		if r.off {
			continue
		}
		s.byState[r.stateKey] = r
		if r.absence != nil {
			s.byTimer[r.absence.Timer] = r
			s.absences = append(s.absences, r.absence.Absence)
		}
		if r.rate != nil {
			s.byMetric[r.rate.Metric] = r
			s.rates = append(s.rates, r.rate.Rate)
		}
	}
	// Those that keep others from firing come first, so that they are judged first.
	slices.SortStableFunc(s.rates, func(a, b pipeline.Rate) int { return cmp.Compare(len(a.Inhibitors), len(b.Inhibitors)) })
	s.fingerprint = hex.EncodeToString(h.Sum(nil)[:6])
	for _, r := range s.rules {
		for _, t := range r.tenants {
			if s.byTenant[t] == nil {
				s.byTenant[t] = &index{byName: map[string][]listener{}}
			}
		}
	}
	for _, r := range s.rules {
		if r.off {
			continue
		}
		if r.tenants == nil {
			s.every.add(r)
			for _, idx := range s.byTenant {
				idx.add(r)
			}
		}
		for _, t := range r.tenants {
			s.byTenant[t].add(r)
		}
	}
}

func (x *index) add(r *rule) {
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
	src      *yamlfile.File
	known    Known
	ruleset  string
	tenants  []int32
	events   map[string]map[string]*types.Type
	defaults *yamlfile.Section
	rules    []*rule
	warnings yamlfile.Faults
	scopes   map[string]*scope
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
	f := l.src.Top("version", "ruleset", "tenants", "defaults", "events", "rules")
	if f.Require("version", "version: 1") && f.String("version") != "1" {
		f.Fault("version", "expected version 1, got %s", yamlfile.Describe(f.Get("version")))
	}
	if f.Require("ruleset", "it is part of the identity of every rule") {
		l.ruleset = l.name(f, "ruleset")
	}
	l.tenants = l.tenantIDs(f)
	if n := f.Get("defaults"); n != nil {
		l.defaults = l.src.Section(n, "defaults", defaultKeys...)
	}
	if n := f.Get("events"); n != nil {
		l.declarations(n)
	}
	if !f.Require("rules", "the list of rules") {
		return
	}
	ids := map[string]int{}
	for i, n := range l.src.Items(f.Get("rules"), "rules", "a list of rules") {
		r := l.rule(n, i)
		if r.id == "" {
			continue
		}
		if line, ok := ids[r.id]; ok {
			l.src.Fault(n, "rules["+r.id+"]", "duplicate rule id %q, first on line %d", r.id, line)
			continue
		}
		ids[r.id] = n.Line
		l.rules = append(l.rules, r)
	}
	l.inhibitors()
}

// inhibitors finds the rules that others name in inhibited_by.
func (l *loader) inhibitors() {
	metrics := map[string]string{}
	for _, r := range l.rules {
		if r.rate != nil && !r.off {
			metrics[r.id] = r.rate.Metric
		}
	}
	for _, r := range l.rules {
		if r.rate == nil {
			continue
		}
		for _, id := range r.rate.inhibitedBy {
			m, ok := metrics[id]
			if !ok || id == r.id {
				r.rate.inhibitPlace.Fault("inhibited_by", "%q is not another rate rule of this file%s", id, spell.DidYouMean(id, slices.Collect(maps.Keys(metrics))))
			}
			r.rate.Inhibitors = append(r.rate.Inhibitors, m)
		}
	}
}

// name reads a name that is used in keys, metrics and paths.
func (l *loader) name(c *yamlfile.Section, key string) string {
	s := c.String(key)
	for i, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || i > 0 && (r == '-' || r == '_')) || i >= 64 {
			c.Fault(key, "%q is not a name; use up to 64 of a-z, 0-9, - and _", s)
			return ""
		}
	}
	return s
}

func (l *loader) tenantIDs(c *yamlfile.Section) []int32 {
	names := c.Strings("tenants")
	if names == nil {
		return nil
	}
	ids := make([]int32, 0, len(names))
	for _, name := range names {
		id, ok := l.known.Tenants[name]
		if !ok && l.known.Tenants != nil {
			c.Fault("tenants", "unknown tenant %q%s", name, spell.DidYouMean(name, slices.Collect(maps.Keys(l.known.Tenants))))
		}
		if ok {
			ids = append(ids, id)
		}
	}
	return ids
}

var propertyTypes = map[string]*types.Type{
	"string": types.StringType, "int": types.IntType, "double": types.DoubleType, "bool": types.BoolType,
	"list": types.NewListType(types.DynType), "map": types.NewMapType(types.StringType, types.DynType), "any": types.DynType,
}

// declarations reads the events section: which events there are, and the types of their properties.
func (l *loader) declarations(n *yaml.Node) {
	l.events = map[string]map[string]*types.Type{}
	known := slices.Sorted(maps.Keys(propertyTypes))
	for k, v := range l.src.Pairs(n, "events") {
		props := map[string]*types.Type{}
		l.events[k.Value] = props
		if v.Tag == "!!null" {
			continue
		}
		where := "events." + k.Value
		for p, t := range l.src.Pairs(v, where) {
			pt, ok := propertyTypes[t.Value]
			if !ok {
				l.src.Fault(t, where+"."+p.Value, "%s is not a type; there are %s%s", yamlfile.Describe(t), strings.Join(known, ", "), spell.DidYouMean(t.Value, known))
				pt = types.DynType
			}
			props[p.Value] = pt
		}
	}
}

// scope is the scope of expressions about events of these names, with the given variables.
func (l *loader) scope(on []string, variables map[string]*types.Type) *scope {
	cacheKey := fmt.Sprintf("%q|%q", slices.Sorted(slices.Values(on)), slices.Sorted(maps.Keys(variables)))
	if sc := l.scopes[cacheKey]; sc != nil {
		return sc
	}
	fields := maps.Clone(eventFields)
	objs := objects{"event": fields, "digest": digestFields, "rate": rateFields}
	props := types.NewMapType(types.StringType, types.DynType)
	if union := l.properties(on); union != nil {
		objs["properties"] = map[string]*types.FieldType{}
		props = types.NewObjectType("properties")
		for name, t := range union {
			objs["properties"][name] = propertyField(name, t)
		}
	}
	fields["properties"] = propertiesField(props)
	sc, err := newScope(variables, objs)
	if err != nil {
		panic(err) // our own declarations
	}
	l.scopes[cacheKey] = sc
	return sc
}

// properties is the union of what the events of these names declare; nil where one of them declares nothing, or there
// are no declarations at all. Where two declare one name with two types, its type is only known at run time.
func (l *loader) properties(on []string) map[string]*types.Type {
	if l.events == nil {
		return nil
	}
	union := map[string]*types.Type{}
	for _, name := range on {
		declared, ok := l.events[name]
		if !ok {
			return nil
		}
		for p, t := range declared {
			if was, ok := union[p]; ok && was != t {
				t = types.DynType
			}
			union[p] = t
		}
	}
	return union
}
