// Package review records in a rules file that somebody has read a rule as it is: it writes reviewed_by into the rule
// and leaves the rest of the file as it was, comments and layout included.
package review

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline/rules"
	"sluice.example/sluice/pipeline/rules/replay"
)

// nameForm is what can stand in a file without quotes: a name or an address of a person.
var nameForm = regexp.MustCompile(`^[\pL\pN][\pL\pN .@_+'-]{0,99}$`)

// Write records that by has reviewed a rule of a file or folder, and returns what the rule says of it then. The file is
// replaced as a whole, so that a running pipeline never reads a half of it, and only if it loads afterwards.
func Write(path string, known rules.Options, name, by string) (*rules.Rule, error) {
	if !nameForm.MatchString(by) {
		return nil, fmt.Errorf("%q is not a name; say who reviewed the rule, in letters, digits, spaces and . @ _ + ' -", by)
	}
	set, err := replay.Load(path, known)
	if err != nil {
		return nil, err
	}
	r := set.Named(name)
	if r == nil {
		var names []string
		for _, other := range set.Rules() {
			names = append(names, other.Name)
		}
		return nil, fmt.Errorf("there is no rule %q, or it is in several files; there are %s", name,
			strings.Join(names, ", "))
	}
	file, line := r.Place()
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	edited, err := edit(file, text, line, r.ID, fmt.Sprintf(`{name: "%s", digest: "%s"}`, by, r.Review.Digest))
	if err != nil {
		return nil, err
	}
	// Beside the file, since what it names has to be found; its name does not end in .yaml, so that nobody reads it.
	draft := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".review")
	if err := os.WriteFile(draft, edited, info.Mode().Perm()); err != nil {
		return nil, err
	}
	defer os.Remove(draft)
	again, err := replay.Load(draft, known)
	if err != nil {
		return nil, fmt.Errorf("the file could not be edited; write reviewed_by into the rule by hand: %w", err)
	}
	if now := again.Named(r.Name); now == nil || !now.Review.Done {
		return nil, errors.New("the file could not be edited; write reviewed_by into the rule by hand")
	} else if err := os.Rename(draft, file); err != nil {
		return nil, err
	} else {
		return now, nil
	}
}

// edit puts reviewed_by into the rule that begins on a line, in place of an older one.
func edit(name string, text []byte, line int, id, value string) ([]byte, error) {
	f := yamlfile.Parse(name, text)
	if err := f.Err(); err != nil {
		return nil, err
	}
	rule := find(f.Root(), line, id)
	if rule == nil {
		return nil, fmt.Errorf("rule %s is not on line %d; write reviewed_by into the rule by hand", id, line)
	}
	lines := strings.SplitAfter(string(text), "\n")
	// at is the byte where a node begins.
	at := func(n *yaml.Node) int {
		begin := 0
		for _, l := range lines[:n.Line-1] {
			begin += len(l)
		}
		return begin + len(string([]rune(lines[n.Line-1])[:n.Column-1]))
	}
	for i := 0; i < len(rule.Content); i += 2 {
		key, old := rule.Content[i], rule.Content[i+1]
		if key.Value != "reviewed_by" {
			continue
		}
		begin := at(old)
		end := strings.IndexByte(string(text[begin:]), '}')
		if old.Style&yaml.FlowStyle == 0 || end < 0 || strings.Contains(string(text[begin:begin+end]), "\n") {
			return nil, fmt.Errorf("%s:%d: reviewed_by is not on one line; write reviewed_by: %s", name, old.Line, value)
		}
		return []byte(string(text[:begin]) + value + string(text[begin+end+1:])), nil
	}
	first := rule.Content[0]
	between := "\n" + strings.Repeat(" ", first.Column-1)
	if rule.Style&yaml.FlowStyle != 0 {
		between = ", "
	}
	return []byte(string(text[:at(first)]) + "reviewed_by: " + value + between + string(text[at(first):])), nil
}

// find returns the rule that begins on a line.
func find(n *yaml.Node, line int, id string) *yaml.Node {
	if n.Kind == yaml.MappingNode && n.Line == line {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "id" && n.Content[i+1].Value == id {
				return n
			}
		}
	}
	for _, child := range n.Content {
		if found := find(child, line, id); found != nil {
			return found
		}
	}
	return nil
}
