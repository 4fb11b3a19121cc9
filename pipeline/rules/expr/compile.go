// Package expr compiles and evaluates the expressions of rules: conditions, keys and payloads, in CEL.
//
// An expression is compiled once, with all of its faults reported at their places in the file, and can then be
// evaluated by any number of goroutines, each with Vars of its own. It sees one event, timer, digest or window, and
// reaches nothing else. It cannot loop, and what it can cost is bounded, see ErrTooExpensive.
package expr

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
)

// Program is one compiled expression. It is safe for concurrent use.
type Program struct {
	// fast evaluates ordinary events, and careful large ones: it counts what that costs.
	fast    cel.Program
	careful func() (cel.Program, error)
	// short answers most conditions; nil where there is no shortcut.
	short *shortcut
	// member is set where the expression is nothing but event.TEXT or event.properties.NAME.
	member *shortcut
}

// result is what an expression has to result in.
type result uint8

const (
	anyValue result = iota
	condition
	key
)

// Condition compiles an expression that results in true or false. A fault is reported at its place; then the program is
// nil.
func (sc *Scope) Condition(f *yamlfile.File, n *yaml.Node, where string) *Program {
	return sc.compile(f, n, where, condition)
}

// Key compiles an expression that names something: a string or an int. Faults are as for Condition.
func (sc *Scope) Key(f *yamlfile.File, n *yaml.Node, where string) *Program {
	return sc.compile(f, n, where, key)
}

// wanted is a text, and what it has to result in.
type wanted struct {
	text string
	want result
}

// compile compiles the expression in a YAML scalar.
func (sc *Scope) compile(src *yamlfile.File, n *yaml.Node, where string, want result) *Program {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		src.Fault(n, where, "expected an expression, got %s", yamlfile.Describe(n))
		return nil
	}
	as := wanted{n.Value, want}
	if p, ok := sc.compiled.Load(as); ok {
		return p.(*Program)
	}
	checked, iss := sc.env.Compile(n.Value)
	if iss.Err() != nil {
		for _, e := range iss.Errors() {
			line, col := src.Inside(n, e.Location.Line(), e.Location.Column())
			src.FaultAt(line, col, where, "%s%s", plain(e.Message), sc.suggest(n.Value, e.Location.Line(), e.Location.Column()))
		}
		return nil
	}
	t := checked.OutputType()
	switch {
	case t.Kind() == types.DynKind, want == anyValue:
	case want == condition && t.Kind() != types.BoolKind:
		src.Fault(n, where, "the expression is of type %s, but has to be a condition (bool)", t)
		return nil
	case want == key && t.Kind() != types.StringKind && t.Kind() != types.IntKind && t.Kind() != types.UintKind:
		src.Fault(n, where, "the expression is of type %s, but has to be a string or an int", t)
		return nil
	}
	tree, short := checked.NativeRep(), (*shortcut)(nil)
	if want == condition {
		short = shortcutOf(tree, tree.Expr())
	}
	replaced(tree)
	fast, careful, err := sc.programs(n.Value, checked)
	if err != nil {
		src.Fault(n, where, "%s", plain(err.Error()))
		return nil
	}
	out := &Program{fast: fast, careful: careful, short: short}
	warned := false
	if sc.Warn != nil {
		warn := func(id int64, message string) {
			warned = true
			place := tree.SourceInfo().GetStartLocation(id)
			line, col := src.Inside(n, place.Line(), place.Column())
			sc.Warn(line, col, where, message)
		}
		warnOfPatterns(tree, warn)
		warnOfDivisions(tree, warn)
	}
	if e := tree.Expr(); e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() {
		out.member = memberOf(tree, e)
	}
	if !warned {
		sc.compiled.Store(as, out)
	}
	return out
}

// replaced makes a checked tree ours, where we evaluate other than CEL.
func replaced(tree *ast.AST) {
	relax(tree)
	replacePresenceTests(tree)
}

// Holds reports whether a condition holds. The error is the reason where that is unknown.
func (p *Program) Holds(v *Vars) (bool, error) {
	switch p.short.holds(&v.view) {
	case yes:
		return true, nil
	case no:
		return false, nil
	}
	out, err := p.eval(v)
	switch {
	case err != nil:
		return false, err
	case out == types.True:
		return true, nil
	case out != types.False:
		return false, fmt.Errorf("match is a %s, not a bool", out.Type().TypeName())
	}
	return false, nil
}

// MaxKeyBytes bounds subjects and keys, in bytes.
const MaxKeyBytes = 1 << 10

var (
	// ErrNoKey is returned for a key that is null or empty.
	ErrNoKey = errors.New("null or empty")
	// ErrLongKey is returned for a key of more than MaxKeyBytes.
	ErrLongKey = fmt.Errorf("longer than %d bytes", MaxKeyBytes)
)

// Text evaluates a key. The error is ErrNoKey, ErrLongKey, or why the expression has no value.
func (p *Program) Text(v *Vars) (string, error) {
	var out ref.Val
	if p.member != nil && p.member.text != nil && v.view.event != nil {
		out = types.String(p.member.text(v.view.event))
	} else {
		var err error
		if out, err = p.eval(v); err != nil {
			return "", err
		}
	}
	text := ""
	switch v := out.(type) {
	case types.String:
		text = string(v)
	case types.Int:
		text = strconv.FormatInt(int64(v), 10)
	case types.Uint:
		text = strconv.FormatUint(uint64(v), 10)
	case types.Null:
	default:
		return "", fmt.Errorf("a %s can't be a key", out.Type().TypeName())
	}
	switch {
	case text == "":
		return "", ErrNoKey
	case len(text) > MaxKeyBytes:
		return "", ErrLongKey
	}
	return text, nil
}

func (p *Program) eval(v *Vars) (ref.Val, error) {
	if v.large {
		return p.counted(v)
	}
	out, _, err := p.fast.Eval(v)
	return out, err
}

// suggest looks at the word where an expression is wrong and finds the known one that is nearest.
func (sc *Scope) suggest(expr string, line, col int) string {
	lines := strings.Split(expr, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	text := []rune(lines[line-1])
	if col < 0 || col >= len(text) {
		return ""
	}
	known := sc.names
	if text[col] == '.' {
		col++
		known = sc.members
	} else if col > 0 && text[col-1] == '.' {
		known = sc.members
	}
	end := col
	for end < len(text) && (text[end] == '_' || unicode.IsLetter(text[end]) || unicode.IsDigit(text[end])) {
		end++
	}
	if end == col {
		return ""
	}
	word := string(text[col:end])
	if slices.Contains(known, word) {
		return ""
	}
	return spell.DidYouMean(word, known)
}

// plain cuts from a message of CEL what does not help: its own list of tokens or names, and further lines.
func plain(s string) string {
	for _, end := range []string{"\n", " expecting {", " (did you mean"} {
		s, _, _ = strings.Cut(s, end)
	}
	return s
}
