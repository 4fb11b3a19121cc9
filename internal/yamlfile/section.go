package yamlfile

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
)

// Section is a mapping of a file whose keys are read one by one. A value that has a fault reads as if it were not
// there.
type Section struct {
	// Where names the section in words, for faults: rules[welcome].cap. The file as a whole has none.
	Where string

	file  *File
	node  *yaml.Node
	keys  []*yaml.Node
	vals  map[string]*yaml.Node
	asked []string
	// broken: it is not a mapping, which is reported; that its keys are missing is not.
	broken bool
}

// Section reads a mapping. It reports what is not a mapping, duplicate keys and, if any keys are known, the others.
func (f *File) Section(n *yaml.Node, where string, known ...string) *Section {
	s := &Section{Where: where, file: f, node: n, vals: map[string]*yaml.Node{}}
	s.broken = Resolve(n).Kind != yaml.MappingNode
	for k, v := range f.Pairs(n, where) {
		s.keys = append(s.keys, k)
		s.vals[k.Value] = v
	}
	if len(known) > 0 {
		s.Allow(known...)
	}
	return s
}

// Top is the section of the whole file. An empty file is an empty section.
func (f *File) Top(known ...string) *Section {
	n := f.root
	if n == nil {
		n = &yaml.Node{Kind: yaml.MappingNode, Line: 1, Column: 1}
	}
	return f.Section(n, "", known...)
}

// Allow reports the keys that are not among known, and forgets them.
func (s *Section) Allow(known ...string) {
	s.keys = slices.DeleteFunc(s.keys, func(k *yaml.Node) bool {
		if slices.Contains(known, k.Value) {
			return false
		}
		hint := ""
		if s.file.Hint != nil {
			hint = s.file.Hint(k.Value)
		}
		if hint == "" {
			hint = spell.DidYouMean(k.Value, known)
		}
		s.file.Fault(k, s.Where, "unknown key %q%s", k.Value, hint)
		delete(s.vals, k.Value)
		return true
	})
}

// Close reports the keys that nothing asked for. It is for sections whose keys depend on their values.
func (s *Section) Close() { s.Allow(s.asked...) }

// File is where the section stands.
func (s *Section) File() *File { return s.file }

// Node is the whole section.
func (s *Section) Node() *yaml.Node { return s.node }

// Get returns the value of a key with aliases resolved; nil where it is not there.
func (s *Section) Get(key string) *yaml.Node {
	s.asked = append(s.asked, key)
	return s.vals[key]
}

// Has reports whether the key is there.
func (s *Section) Has(key string) bool { return s.Get(key) != nil }

// Default sets the value of a key that is not there.
func (s *Section) Default(key string, n *yaml.Node) {
	if s.vals[key] == nil {
		s.vals[key] = n
	}
}

// At is the place of a key within the section, in words.
func (s *Section) At(key string) string {
	if s.Where == "" {
		return key
	}
	return s.Where + "." + key
}

// Fault adds a fault at the value of a key, or at the section where the key is not there.
func (s *Section) Fault(key, format string, args ...any) {
	n := s.vals[key]
	if n == nil {
		n = s.node
	}
	s.file.Fault(n, s.At(key), format, args...)
}

// Require reports a missing key with the reason why it is needed.
func (s *Section) Require(key, why string) bool {
	if s.Get(key) != nil {
		return true
	}
	if s.broken {
		return false
	}
	s.file.Fault(s.node, s.Where, "missing required key %q (%s)", key, why)
	return false
}

// Section reads the mapping under a key; nil where the key is not there.
func (s *Section) Section(key string, known ...string) *Section {
	n := s.Get(key)
	if n == nil {
		return nil
	}
	return s.file.Section(n, s.At(key), known...)
}

// String reads a scalar as text: 7 and true are texts. Empty texts and null are faults.
func (s *Section) String(key string) string {
	n := s.Get(key)
	if n == nil {
		return ""
	}
	if !IsScalar(n) || n.Value == "" {
		s.Fault(key, "expected a string, got %s", Describe(n))
		return ""
	}
	return n.Value
}

// OneOf reads a scalar that has to be one of a few words; the first of them where the key is not there.
func (s *Section) OneOf(key string, words ...string) string {
	got := s.String(key)
	if got == "" {
		return words[0]
	}
	if !slices.Contains(words, got) {
		s.Fault(key, "%q is not one of %s%s", got, strings.Join(words, ", "), spell.DidYouMean(got, words))
		return words[0]
	}
	return got
}

// Strings reads a list of scalars, or one scalar as a list of one. An empty list is a fault.
func (s *Section) Strings(key string) []string {
	n := s.Get(key)
	switch {
	case n == nil:
		return nil
	case IsScalar(n) && n.Value != "":
		return []string{n.Value}
	case n.Kind != yaml.SequenceNode || len(n.Content) == 0:
		s.Fault(key, "expected a string or a list of strings, got %s", Describe(n))
		return nil
	}
	var out []string
	for _, item := range s.file.Items(n, s.At(key), "a list") {
		if !IsScalar(item) || item.Value == "" {
			s.file.Fault(item, s.At(key), "expected a string, got %s", Describe(item))
			continue
		}
		out = append(out, item.Value)
	}
	return out
}

// Bool reads true or false; fallback where the key is not there.
func (s *Section) Bool(key string, fallback bool) bool {
	n := s.Get(key)
	if n == nil {
		return fallback
	}
	var b bool
	if !IsScalar(n) || n.Tag != "!!bool" || n.Decode(&b) != nil {
		s.Fault(key, "expected true or false, got %s", Describe(n))
		return fallback
	}
	return b
}

// Int reads a whole number from least to most; fallback where the key is not there.
func (s *Section) Int(key string, fallback, least, most int) int {
	n := s.Get(key)
	if n == nil {
		return fallback
	}
	i, err := strconv.Atoi(n.Value)
	if !IsScalar(n) || err != nil || i < least || i > most {
		s.Fault(key, "expected a whole number from %d to %d, got %s", least, most, Describe(n))
		return fallback
	}
	return i
}

// Float reads a number from least to most; fallback where the key is not there.
func (s *Section) Float(key string, fallback, least, most float64) float64 {
	n := s.Get(key)
	if n == nil {
		return fallback
	}
	f, err := strconv.ParseFloat(n.Value, 64)
	if !IsScalar(n) || err != nil || math.IsNaN(f) || f < least || f > most {
		s.Fault(key, "expected a number from %g to %g, got %s", least, most, Describe(n))
		return fallback
	}
	return f
}

// Duration reads a length of time from least to most; fallback where the key is not there.
func (s *Section) Duration(key string, fallback, least, most time.Duration) time.Duration {
	n := s.Get(key)
	if n == nil {
		return fallback
	}
	d, ok := s.file.Duration(n, s.At(key), least, most)
	if !ok {
		return fallback
	}
	return d
}
