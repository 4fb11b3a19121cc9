package evaluate

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// source is a rules file while it is read; it gathers the faults.
type source struct {
	file  string
	lines []string
	errs  LoadErrors
}

func readSource(file string) (*source, *yaml.Node) {
	src := &source{file: file}
	text, err := os.ReadFile(file)
	if err != nil {
		src.faultAt(0, 0, "", "%v", err)
		return src, nil
	}
	src.lines = strings.Split(string(text), "\n")
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		line := 1
		fmt.Sscanf(err.Error(), "yaml: line %d:", &line)
		src.faultAt(line, 1, "", "%v", err)
		return src, nil
	}
	if len(doc.Content) == 0 {
		src.faultAt(1, 1, "", "the file is empty; it starts with version: 1")
		return src, nil
	}
	return src, doc.Content[0]
}

func (s *source) faultAt(line, col int, where, format string, args ...any) {
	s.errs = append(s.errs, LoadError{s.file, line, col, where, fmt.Sprintf(format, args...)})
}

func (s *source) fault(n *yaml.Node, where, format string, args ...any) {
	s.faultAt(n.Line, n.Column, where, format, args...)
}

// inside gives the place in the file of a place inside a scalar: line counts from 1, col from 0. Where the form of the
// scalar does not tell (folded over several lines), it is the scalar's own place.
func (s *source) inside(n *yaml.Node, line, col int) (int, int) {
	switch {
	case n.Style&yaml.LiteralStyle != 0:
		for i := n.Line; i < len(s.lines); i++ {
			if t := strings.TrimLeft(s.lines[i], " "); t != "" {
				return n.Line + line, len(s.lines[i]) - len(t) + col + 1
			}
		}
	case line != 1 || n.Style&yaml.FoldedStyle != 0 || n.Line > len(s.lines):
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		text := []rune(s.lines[n.Line-1])
		at := n.Column
		for ; col > 0 && at < len(text); col-- {
			at += escaped(text[at:], n.Style)
		}
		if at < len(text) {
			return n.Line, at + 1
		}
	default:
		if text := []rune(s.lines[n.Line-1]); n.Column-1+col <= len(text) {
			return n.Line, n.Column + col
		}
	}
	return n.Line, n.Column
}

// escaped is how many characters the next one takes in a quoted scalar.
func escaped(text []rune, style yaml.Style) int {
	switch {
	case style&yaml.SingleQuotedStyle != 0 && text[0] == '\'':
		return 2
	case style&yaml.DoubleQuotedStyle != 0 && text[0] == '\\' && len(text) > 1:
		return map[rune]int{'x': 4, 'u': 6, 'U': 10}[text[1]] + 2*b2i(!strings.ContainsRune("xuU", text[1]))
	}
	return 1
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func kindName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

// section is a mapping of the file whose keys are known.
type section struct {
	src   *source
	node  *yaml.Node
	where string
	vals  map[string]*yaml.Node
	keys  map[string]*yaml.Node
}

// section reads a mapping and reports what is no mapping, unknown keys and repeated keys.
func (s *source) section(n *yaml.Node, where string, known ...string) *section {
	sec := &section{src: s, node: n, where: where, vals: map[string]*yaml.Node{}, keys: map[string]*yaml.Node{}}
	for k, v := range s.pairs(n, where) {
		switch name := k.Value; {
		case len(known) > 0 && !slices.Contains(known, name):
			s.fault(k, where, "unknown key %q%s", name, hint(name, known))
		default:
			sec.vals[name], sec.keys[name] = v, k
		}
	}
	return sec
}

// hint says what to do about a key that is not known.
func hint(name string, known []string) string {
	switch name {
	case "url", "destination", "destinations", "webhook", "headers", "secret":
		return "; addresses are not part of the rules: name a destination of the configuration in send_to"
	}
	return didYouMean(name, known)
}

// pairs goes over the keys and values of a mapping, in order and with aliases resolved.
func (s *source) pairs(n *yaml.Node, where string) func(func(k, v *yaml.Node) bool) {
	return func(yield func(k, v *yaml.Node) bool) {
		n = resolve(n)
		if n.Kind != yaml.MappingNode {
			s.fault(n, where, "a mapping (key: value) is wanted here, not %s", kindName(n))
			return
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if line, ok := seen[k.Value]; ok {
				s.fault(k, where, "key %q stands here twice, first on line %d", k.Value, line)
				continue
			}
			seen[k.Value] = k.Line
			if !yield(k, resolve(n.Content[i+1])) {
				return
			}
		}
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// at is the place of a key within the section, in words.
func (c *section) at(key string) string {
	if c.where == "" {
		return key
	}
	return c.where + "." + key
}

func (c *section) fault(key, format string, args ...any) {
	n := c.vals[key]
	if n == nil {
		n = c.node
	}
	c.src.fault(n, c.at(key), format, args...)
}

// need reports a missing key with the reason why it is wanted.
func (c *section) need(key, why string) bool {
	if c.vals[key] != nil {
		return true
	}
	c.src.fault(c.node, c.where, "missing required key %q (%s)", key, why)
	return false
}

// text reads a scalar; "" where it is not there.
func (c *section) text(key string) string {
	n := c.vals[key]
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		c.fault(key, "a text is wanted here, not %s", kindName(n))
		return ""
	}
	return n.Value
}

// oneOf reads a scalar that has to be one of a few words; the first one where it is not there.
func (c *section) oneOf(key string, words ...string) string {
	got := c.text(key)
	if got == "" {
		return words[0]
	}
	if !slices.Contains(words, got) {
		c.fault(key, "%q is none of %s%s", got, strings.Join(words, ", "), didYouMean(got, words))
		return words[0]
	}
	return got
}

// texts reads a list of scalars, or one scalar as a list of one.
func (c *section) texts(key string) []string {
	n := c.vals[key]
	if n == nil {
		return nil
	}
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return []string{n.Value}
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		c.fault(key, "a name or a list of names is wanted here, not %s", kindName(n))
		return nil
	}
	var out []string
	for _, item := range n.Content {
		item = resolve(item)
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			c.src.fault(item, c.at(key), "a name is wanted here, not %s", kindName(item))
			continue
		}
		out = append(out, item.Value)
	}
	return out
}

func (c *section) integer(key string, lo, hi int) int {
	n := c.vals[key]
	if n == nil {
		return 0
	}
	i, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || i < lo || i > hi {
		c.fault(key, "a whole number from %d to %d is wanted here, not %s", lo, hi, kindName(n))
		return lo
	}
	return i
}

// duration reads a length of time like 90s, 15m, 24h, 7d, 2w; 0 where it is not there.
func (c *section) duration(key string, atLeast time.Duration) time.Duration {
	n := c.vals[key]
	if n == nil {
		return 0
	}
	d, ok := parseDuration(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || !ok:
		c.fault(key, "a length of time like 90s, 15m, 24h or 7d is wanted here, not %s", kindName(n))
		return 0
	case d < atLeast:
		c.fault(key, "%s is too short; at least %s is wanted", n.Value, atLeast)
	case d > maxDuration:
		c.fault(key, "%s is too long; at most %dd is possible", n.Value, maxDuration/(24*time.Hour))
	}
	return d
}

// maxDuration bounds every length of time in a rule: ten years.
const maxDuration = 3660 * 24 * time.Hour

func parseDuration(s string) (time.Duration, bool) {
	for unit, len := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if num, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.Atoi(num)
			return time.Duration(n) * len, err == nil && n >= 0 && n <= 20_000
		}
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0
}
