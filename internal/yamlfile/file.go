// Package yamlfile reads the YAML files that people write: rules, destinations, tenants, topics, the configuration.
//
// It reports every mistake of a file at once, each with its line and column, in the order of the file: what is not
// YAML, unknown keys (with the known one that was probably meant), duplicate keys, missing keys, values of another kind
// or out of range. What a value means is the caller's business; faults that the caller finds are reported the same way.
//
// No file can take the process down: its size is bounded before it is read, and aliases that contain themselves, or
// that stand for more than a million values together, are faults. So whoever walks a File's values comes to an end.
//
// A File and its Sections are for one goroutine. Nothing is kept open.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/duration"
)

// File is a YAML file while it is read. It gathers the faults.
type File struct {
	// Name is the file's name in faults.
	Name string
	// Hint, if set, completes the message about an unknown key where it returns a text, in place of "did you mean".
	Hint func(key string) string

	root   *yaml.Node
	lines  []string
	faults Faults
}

// Read reads a file. What keeps it from being read is a fault of it.
func Read(name string) *File {
	text, err := Text(name)
	if err != nil {
		f := &File{Name: name}
		f.FaultAt(0, 0, "", "%v", plain(err))
		return f
	}
	return Parse(name, text)
}

// maxBytes bounds a file. A guess: a thousand times what people write, and parsed in a second.
const maxBytes = 4 << 20

// Text reads a whole file as Read does, without looking at what it says. A pipe or a device, which could make us wait,
// or never end, is an error.
func Text(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = errTooLarge
	}
	return text, err
}

var errTooLarge = fmt.Errorf("it is larger than %d MiB", maxBytes>>20)

// plain cuts the name of the file from an error that a fault begins with anyway.
func plain(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Parse reads a text that is at hand; name stands for the file in faults.
func Parse(name string, text []byte) *File {
	f := &File{Name: name}
	if len(text) > maxBytes {
		f.FaultAt(0, 0, "", "%v", errTooLarge)
		return f
	}
	f.lines = strings.Split(string(text), "\n")
	in := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return f
	case err != nil:
		f.syntax(err)
		return f
	}
	switch err := in.Decode(&next); {
	case errors.Is(err, io.EOF):
	case err != nil:
		f.syntax(err)
		return f
	default:
		f.FaultAt(next.Line, next.Column, "", "a second document begins here; a file holds one")
		return f
	}
	if len(doc.Content) > 0 && !isNull(doc.Content[0]) && f.bounded(doc.Content[0]) {
		f.root = doc.Content[0]
	}
	return f
}

// syntax reports the error of the YAML parser, at the line that it names.
func (f *File) syntax(err error) {
	line := 1
	_, message, found := strings.Cut(err.Error(), "yaml: ")
	if !found {
		message = err.Error()
	}
	if n, _ := fmt.Sscanf(message, "line %d:", &line); n == 1 {
		_, message, _ = strings.Cut(message, ": ")
	}
	f.FaultAt(line, 1, "", "not valid YAML: %s", message)
}

// maxValues bounds how many values a file stands for once its aliases are resolved. A guess: far above what anybody
// writes, and walked in a fraction of a second.
const maxValues = 1_000_000

// bounded reports whether the value can be walked with its aliases resolved, and otherwise the first alias that is in
// the way.
func (f *File) bounded(n *yaml.Node) bool {
	sizes := map[*yaml.Node]int{}
	open := map[*yaml.Node]bool{}
	var size func(n *yaml.Node) int // maxValues+1 after a fault
	size = func(n *yaml.Node) int {
		if known, ok := sizes[n]; ok {
			return known
		}
		children := n.Content
		if n.Kind == yaml.AliasNode {
			if open[n.Alias] {
				f.Fault(n, "", "alias *%s stands for what contains it; an anchor may not contain itself", n.Value)
				return maxValues + 1
			}
			children = []*yaml.Node{n.Alias}
		}
		open[n] = true
		sum := 1
		for _, child := range children {
			part := size(child)
			if part > maxValues {
				return part
			}
			if sum += part; sum > maxValues {
				f.Fault(child, "", "the file expands to more than %d values here; use fewer aliases", maxValues)
				return sum
			}
		}
		delete(open, n)
		sizes[n] = sum
		return sum
	}
	return size(n) <= maxValues
}

// Root is the file's value; nil where the file is empty or can't be read.
func (f *File) Root() *yaml.Node { return f.root }

// Faults are those found up to now, in the order of the file.
func (f *File) Faults() Faults {
	f.faults.Sort()
	return f.faults
}

// Err is Faults as an error; nil without faults.
func (f *File) Err() error { return f.faults.Err() }

// FaultAt adds a fault. Line and col count from 1; line 0 means the whole file.
func (f *File) FaultAt(line, col int, where, format string, args ...any) {
	f.faults = append(f.faults, Fault{f.Name, line, col, where, fmt.Sprintf(format, args...)})
}

// Fault adds a fault at a value's place; nil means the file's beginning.
func (f *File) Fault(n *yaml.Node, where, format string, args ...any) {
	if n == nil {
		f.FaultAt(1, 1, where, format, args...)
		return
	}
	f.FaultAt(n.Line, n.Column, where, format, args...)
}

// Resolve follows aliases to the value that they stand for.
func Resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Describe names a value for "expected ..., got ...".
func Describe(n *yaml.Node) string {
	switch n = Resolve(n); {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	}
	return strconv.Quote(n.Value)
}

func isNull(n *yaml.Node) bool { return n.Tag == "!!null" }

// IsScalar reports whether a value is a single one, and not null.
func IsScalar(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && !isNull(n) }

// Pairs goes over the keys and values of a mapping, in the order of the file and with aliases resolved. It reports what
// is not a mapping, and keys that stand there twice, of which the first counts.
func (f *File) Pairs(n *yaml.Node, where string) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(k, v *yaml.Node) bool) {
		n := Resolve(n)
		if n.Kind != yaml.MappingNode {
			f.Fault(n, where, "expected a mapping (key: value), got %s", Describe(n))
			return
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := Resolve(n.Content[i])
			if k.Kind != yaml.ScalarNode {
				f.Fault(n.Content[i], where, "expected a name as the key, got %s", Describe(k))
				continue
			}
			if line, ok := seen[k.Value]; ok {
				f.Fault(n.Content[i], where, "duplicate key %q, first on line %d", k.Value, line)
				continue
			}
			seen[k.Value] = n.Content[i].Line
			if !yield(n.Content[i], Resolve(n.Content[i+1])) {
				return
			}
		}
	}
}

// Items goes over the values of a list, with aliases resolved. It reports what is not a list; what describes the list,
// like "a list of rules".
func (f *File) Items(n *yaml.Node, where, what string) iter.Seq2[int, *yaml.Node] {
	return func(yield func(i int, item *yaml.Node) bool) {
		n := Resolve(n)
		if n.Kind != yaml.SequenceNode {
			f.Fault(n, where, "expected %s, got %s", what, Describe(n))
			return
		}
		for i, item := range n.Content {
			if !yield(i, Resolve(item)) {
				return
			}
		}
	}
}

// Duration reads a length of time between least and most, both included; ok is false where there is a fault.
func (f *File) Duration(n *yaml.Node, where string, least, most time.Duration) (d time.Duration, ok bool) {
	n = Resolve(n)
	d, err := duration.Parse(n.Value)
	switch {
	case !IsScalar(n), err != nil:
		f.Fault(n, where, "expected a duration such as 90s, 15m, 24h or 7d, got %s", Describe(n))
	case d < least:
		f.Fault(n, where, "%s is too short; the least is %s", n.Value, duration.Format(least))
	case d > most:
		f.Fault(n, where, "%s is too long; the most is %s", n.Value, duration.Format(most))
	default:
		return d, true
	}
	return 0, false
}

// Inside returns the place in the file of a place inside a scalar: line counts from 1, col from 0. Where the form of
// the scalar does not tell (folded over several lines), it is the scalar's own place.
func (f *File) Inside(n *yaml.Node, line, col int) (fileLine, fileCol int) {
	switch {
	case n.Style&yaml.LiteralStyle != 0:
		for i := n.Line; i < len(f.lines); i++ {
			if t := strings.TrimLeft(f.lines[i], " "); t != "" {
				return n.Line + line, len(f.lines[i]) - len(t) + col + 1
			}
		}
	case line != 1 || n.Style&yaml.FoldedStyle != 0 || n.Line > len(f.lines):
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		text := []rune(f.lines[n.Line-1])
		at := n.Column
		for ; col > 0 && at < len(text); col-- {
			at += escaped(text[at:], n.Style)
		}
		if at < len(text) {
			return n.Line, at + 1
		}
	default:
		if text := []rune(f.lines[n.Line-1]); n.Column-1+col <= len(text) {
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
	case style&yaml.DoubleQuotedStyle == 0 || text[0] != '\\' || len(text) < 2:
		return 1
	}
	switch text[1] {
	case 'x':
		return 4
	case 'u':
		return 6
	case 'U':
		return 10
	}
	return 2
}
