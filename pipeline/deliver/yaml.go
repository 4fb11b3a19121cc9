package deliver

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
)

// faults gathers what is wrong with the file, each with its line.
type faults struct {
	file string
	errs []error
}

func (f *faults) add(n *yaml.Node, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s:%d: %s", f.file, n.Line, fmt.Sprintf(format, args...)))
}

// mapping is a YAML mapping whose keys are taken one by one; finish reports those that nobody took.
type mapping struct {
	f     *faults
	node  *yaml.Node
	what  string
	known []string
}

func (f *faults) mapping(n *yaml.Node, what string) *mapping {
	if n.Kind != yaml.MappingNode {
		f.add(n, "%s must be a mapping of settings to values", what)
		n = &yaml.Node{Kind: yaml.MappingNode, Line: n.Line}
	}
	return &mapping{f: f, node: n, what: what}
}

// get gives the value of a key, nil where the file has none.
func (m *mapping) get(key string) *yaml.Node {
	m.known = append(m.known, key)
	var found *yaml.Node
	for i := 0; i+1 < len(m.node.Content); i += 2 {
		if m.node.Content[i].Value != key {
			continue
		}
		if found != nil {
			m.f.add(m.node.Content[i], "%s has the key %q twice", m.what, key)
			continue
		}
		found = m.node.Content[i+1]
	}
	return found
}

// decode reads a key into target; it says whether the file has the key.
func (m *mapping) decode(key, kind string, target any) bool {
	n := m.get(key)
	if n == nil {
		return false
	}
	if n.Kind != yaml.ScalarNode || n.Decode(target) != nil {
		m.f.add(n, "%s: %s must be %s", m.what, key, kind)
	}
	return true
}

func (m *mapping) str(key string) (s string, ok bool) {
	ok = m.decode(key, "a string", &s)
	return s, ok
}

func (m *mapping) boolean(key string) (b bool) {
	m.decode(key, "true or false", &b)
	return b
}

// number reads an integer between least and most; without the key, target keeps what it has.
func (m *mapping) number(key string, target *int, least, most int) {
	n := m.get(key)
	if n == nil {
		return
	}
	var i int
	if n.Kind != yaml.ScalarNode || n.Decode(&i) != nil || i < least || i > most {
		m.f.add(n, "%s: %s must be a whole number from %d to %d", m.what, key, least, most)
		return
	}
	*target = i
}

// duration reads a duration such as 5s or 1h30m.
func (m *mapping) duration(key string, target *time.Duration, least, most time.Duration) {
	if n := m.get(key); n != nil {
		m.f.duration(n, m.what+": "+key, target, least, most)
	}
}

func (f *faults) duration(n *yaml.Node, what string, target *time.Duration, least, most time.Duration) {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < least || d > most {
		f.add(n, "%s must be a duration with its unit, from %s to %s, for example 5s or 1h30m", what, least, most)
		return
	}
	*target = d
}

// strings reads one string or a list of them.
func (m *mapping) strings(key string) []string {
	n := m.get(key)
	switch {
	case n == nil:
		return nil
	case n.Kind == yaml.ScalarNode && n.Value != "":
		return []string{n.Value}
	case n.Kind == yaml.SequenceNode:
		var all []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Value == "" {
				m.f.add(item, "%s: %s must hold names, each a string", m.what, key)
				continue
			}
			all = append(all, item.Value)
		}
		return all
	}
	m.f.add(n, "%s: %s must be a string or a list of strings", m.what, key)
	return nil
}

// finish reports every key that nothing asked for.
func (m *mapping) finish() {
	for i := 0; i+1 < len(m.node.Content); i += 2 {
		key := m.node.Content[i]
		if !contains(m.known, key.Value) {
			m.f.add(key, "%s: unknown setting %q%s", m.what, key.Value, didYouMean(key.Value, m.known))
		}
	}
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

// didYouMean gives the known word nearest to s, as the end of a message, and all that are known where none is near.
func didYouMean(s string, known []string) string {
	if nearest := spell.Nearest(s, known, len(s)/2); nearest != "" {
		return fmt.Sprintf(": did you mean %q?", nearest)
	}
	return ": known are " + strings.Join(known, ", ")
}
