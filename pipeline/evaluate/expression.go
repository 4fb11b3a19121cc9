package evaluate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/internal/yamlfile"
)

// maxCost bounds what an expression can cost on the largest event, in CEL's units (about one per step and per ten
// bytes looked at). Without comprehensions the cost is linear in the event, so it is checked once, when the rules are
// loaded, and not while they run: counting there makes an expression 2.9 times as slow. A guess, wide enough for
// forty regular expressions.
const maxCost = 50_000

// The sizes that the cost is computed for; larger texts cost more, in proportion.
const (
	costTextBytes  = 2 << 10
	costListLength = 1 << 10
)

// scope is what one expression may name: variables, and the members of their types.
type scope struct {
	env *cel.Env
	// names and members are for "did you mean".
	names, members []string
}

// objects maps the name of an object type to its members.
type objects map[string]map[string]*types.FieldType

// newScope makes the environment: the standard operators and functions, has(), coalesce(), and nothing that loops or
// reaches outside.
func newScope(vars map[string]*types.Type, objs objects) (*scope, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	opts := []cel.EnvOption{
		cel.CustomTypeProvider(&provider{registry, objs}),
		cel.ClearMacros(), cel.Macros(cel.HasMacro),
		cel.ASTValidators(regexLiterals{}, cel.ValidateTimestampLiterals(), cel.ValidateDurationLiterals()),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(16 << 10),
		cel.ParserRecursionLimit(50),
		coalesce(),
	}
	sc := &scope{}
	for name, t := range vars {
		opts = append(opts, cel.Variable(name, t))
		sc.names = append(sc.names, name)
	}
	for _, fields := range objs {
		sc.members = slices.AppendSeq(sc.members, maps.Keys(fields))
	}
	if sc.env, err = cel.NewEnv(opts...); err != nil {
		return nil, err
	}
	sc.names = slices.AppendSeq(sc.names, maps.Keys(sc.env.Functions()))
	sc.names = append(sc.names, "has", "true", "false", "null")
	return sc, nil
}

// coalesce gives the first argument that is there: no error, not null, no empty text. Null if none is.
func coalesce() cel.EnvOption {
	a := cel.TypeParamType("A")
	var overloads []cel.FunctionOpt
	for n := 2; n <= 4; n++ {
		overloads = append(overloads, cel.Overload(fmt.Sprintf("coalesce_%d", n), slices.Repeat([]*cel.Type{a}, n), a,
			cel.OverloadIsNonStrict(), cel.FunctionBinding(func(args ...ref.Val) ref.Val {
				for _, v := range args {
					if types.IsUnknownOrError(v) || v == types.NullValue || v == types.String("") {
						continue
					}
					return v
				}
				return types.NullValue
			})))
	}
	return cel.Function("coalesce", overloads...)
}

// provider tells CEL about our object types and leaves the rest to its own registry.
type provider struct {
	types.Provider
	objs objects
}

func (p *provider) FindStructType(name string) (*types.Type, bool) {
	if _, ok := p.objs[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.Provider.FindStructType(name)
}

func (p *provider) FindStructFieldNames(name string) ([]string, bool) {
	if fields, ok := p.objs[name]; ok {
		return slices.Sorted(maps.Keys(fields)), true
	}
	return p.Provider.FindStructFieldNames(name)
}

func (p *provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if fields, ok := p.objs[name]; ok {
		f, ok := fields[field]
		return f, ok
	}
	return p.Provider.FindStructFieldType(name, field)
}

func (p *provider) NewValue(name string, fields map[string]ref.Val) ref.Val {
	if _, ok := p.objs[name]; ok {
		return types.NewErr("%s can't be made by an expression", name)
	}
	return p.Provider.NewValue(name, fields)
}

// sizes tells the cost estimate how large things get.
type sizes struct{}

func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

func (sizes) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	if n.ComputedSize() != nil {
		return nil
	}
	switch n.Type().Kind() {
	case types.StringKind, types.BytesKind, types.DynKind:
		return &cost.SizeEstimate{Max: costTextBytes}
	case types.ListKind, types.MapKind:
		return &cost.SizeEstimate{Max: costListLength}
	}
	return nil
}

// program is one compiled expression.
type program struct {
	prg cel.Program
	// short answers most conditions; nil where there is no shortcut.
	short *shortcut
	// member is set where the expression is nothing but event.TEXT or event.properties.NAME.
	member *shortcut
}

// result is what an expression has to give.
type result uint8

const (
	anyValue result = iota
	condition
	key
)

// compile compiles the expression in a YAML scalar. A fault is reported at its place, and gives nil.
func (sc *scope) compile(src *yamlfile.File, n *yaml.Node, where string, want result) *program {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		src.Fault(n, where, "expected an expression, got %s", yamlfile.Describe(n))
		return nil
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
	est, err := sc.env.EstimateCost(checked, sizes{})
	if err == nil && est.Max > maxCost {
		err = fmt.Errorf("the expression can cost up to %d on a large event, which is more than %d; make it shorter", est.Max, maxCost)
	}
	var prg cel.Program
	if err == nil {
		prg, err = sc.env.Program(checked, cel.EvalOptions(cel.OptOptimize))
	}
	if err != nil {
		src.Fault(n, where, "%s", plain(err.Error()))
		return nil
	}
	tree, out := checked.NativeRep(), &program{prg: prg}
	if want == condition {
		out.short = shortcutOf(tree, tree.Expr())
	}
	if e := tree.Expr(); e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() {
		out.member = memberOf(tree, e)
	}
	return out
}

func (p *program) eval(v *vars) (ref.Val, error) {
	out, _, err := p.prg.Eval(v)
	return out, err
}

// suggest looks at the word where an expression is wrong and finds the known one that is nearest.
func (sc *scope) suggest(expr string, line, col int) string {
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

// regexLiterals reports regular expressions that do not compile. CEL's own validator does not say why.
type regexLiterals struct{}

func (regexLiterals) Name() string { return "sluice.regex_literals" }

func (regexLiterals) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, iss *cel.Issues) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(overloads.Matches)) {
		args := call.AsCall().Args()
		pattern := args[len(args)-1]
		if pattern.Kind() != ast.LiteralKind {
			continue
		}
		if s, ok := pattern.AsLiteral().(types.String); ok {
			if _, err := regexp.Compile(string(s)); err != nil {
				iss.ReportErrorAtID(pattern.ID(), "%v", err)
			}
		}
	}
}

// vars are the variables of one evaluation. It is a CEL activation.
type vars struct {
	event  *record
	digest *object
	rate   *object
	// key and since are those of an absence rule's timer.
	key   string
	since time.Time
}

func (v *vars) ResolveName(name string) (any, bool) {
	switch name {
	case "event", "trigger":
		return v.event, v.event != nil
	case "digest":
		return v.digest, v.digest != nil
	case "rate":
		return v.rate, v.rate != nil
	case "key":
		return types.String(v.key), true
	case "since":
		return types.Timestamp{Time: v.since}, true
	}
	return nil, false
}

func (v *vars) Parent() cel.Activation { return nil }
