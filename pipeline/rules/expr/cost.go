package expr

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// What evaluating costs is bounded three times: when an expression is compiled, for one event, and for all events that
// one Vars sees. So one event can't make the others wait, whoever sent it.
//
// The cost of an ordinary event follows from the expression and is not counted while it runs: counting there makes an
// expression 2.9 times as slow. It is counted for large events, and for every regular expression that has more to do
// than a little. The unit is CEL's: about one step, or ten bytes looked at; a million of them take some 60 ms.
const (
	// maxCost bounds what an expression can cost on an event whose texts have costTextBytes; larger texts cost more, in
	// proportion. A guess, wide enough for forty regular expressions.
	maxCost        = 50_000
	costTextBytes  = 2 << 10
	costListLength = 1 << 10

	// largeEvent is the size in bytes from which on costs are counted: eight times that of maxCost.
	largeEvent = 16 << 10
	// maxEventCost bounds one event, and maxTotalCost all that one Vars sees: some 30 ms, and a fifth of a second.
	maxEventCost = 500_000
	maxTotalCost = 3_000_000

	// maxInstructions bounds the size of a regular expression, and maxSteps its work on one text: bytes times
	// instructions, of which about ten cost as much as a unit. Up to freeSteps are not counted, some 50 us.
	maxInstructions = 1000
	maxSteps        = 4_000_000
	freeSteps       = 10_000
	stepsPerUnit    = 10
)

// ErrTooExpensive is returned where evaluating would cost more than one event may.
var ErrTooExpensive = errors.New("too expensive for an event of this size")

// charge adds a cost, and reports whether it is within the bounds.
func (v *Vars) charge(units uint64) bool {
	v.spent += units
	v.total += units
	return v.affordable()
}

func (v *Vars) affordable() bool { return v.spent <= maxEventCost && v.total <= maxTotalCost }

// counted evaluates an expression on a large event, and counts what that costs.
func (p *Program) counted(v *Vars) (ref.Val, error) {
	if !v.affordable() {
		return nil, ErrTooExpensive
	}
	careful, err := p.careful()
	if err != nil {
		return nil, err
	}
	out, details, err := careful.Eval(v)
	if details != nil && details.ActualCost() != nil {
		v.charge(*details.ActualCost())
	}
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded {
		err = ErrTooExpensive
	}
	return out, err
}

// programs plans an expression for ordinary events, and, at the first large one, counting.
func (sc *Scope) programs(text string, checked *cel.Ast) (
	fast cel.Program, careful func() (cel.Program, error), err error) {
	if plainNodes(checked.NativeRep().Expr()) > maxPlainNodes {
		var est cost.Estimate
		if est, err = sc.env.EstimateCost(checked, sizes{}); err == nil && est.Max > maxCost {
			err = fmt.Errorf("the expression can cost up to %d on a large event, which is more than %d; make it shorter",
				est.Max, maxCost)
		}
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.OptimizeRegex(matchers...)}
	if err == nil {
		fast, err = sc.env.Program(checked, options...)
	}
	careful = sync.OnceValues(func() (cel.Program, error) {
		// Compiled anew: the tree that the first one was planned from would stay in memory for what most rules
		// never meet.
		again, iss := sc.env.Compile(text)
		if iss.Err() != nil {
			return nil, iss.Err()
		}
		replaced(again.NativeRep())
		return sc.env.Program(again, append(options, cel.CostLimit(maxEventCost), cel.CostTracking(sizes{}))...)
	})
	return fast, careful, err
}

// maxPlainNodes is up to how many parts a plain expression is below maxCost whatever it says: each looks at one text
// of costTextBytes at most.
const maxPlainNodes = 100

// plainNodes counts the parts of an expression of members, constants and their comparisons; one that has anything else
// has more than maxPlainNodes. Most expressions are plain, and estimating what they cost took two fifths of the memory
// that loading them takes.
func plainNodes(e ast.Expr) int {
	switch e.Kind() {
	case ast.IdentKind, ast.LiteralKind:
		return 1
	case ast.SelectKind:
		return 1 + plainNodes(e.AsSelect().Operand())
	case ast.CallKind:
		name, n := e.AsCall().FunctionName(), 1
		if _, ok := celOperators[name]; !ok && name != "@"+presence {
			break
		}
		for _, arg := range e.AsCall().Args() {
			n += plainNodes(arg)
		}
		return n
	}
	return maxPlainNodes + 1
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

// CallCost counts what an operator or function has to look at: CEL itself counts one for those whose types it does not
// know when it compiles, which is true of most properties.
func (sizes) CallCost(_, _ string, args []ref.Val, _ ref.Val) *uint64 {
	units := uint64(1)
	for _, arg := range args {
		switch v := arg.(type) {
		case types.String:
			units += uint64(len(v)) / 10
		case types.Bytes:
			units += uint64(len(v)) / 10
		case *object:
			units += uint64(len(v.raw)) / 5
		case jsonList:
			units += uint64(v.bytes) / 2 // an element of it, and its comparison, are as small as two bytes
		case traits.Sizer:
			if n, ok := v.Size().(types.Int); ok {
				units += uint64(n)
			}
		}
	}
	return &units
}

// matchers replace CEL's calls of matches() by ours, which is bounded.
var matchers = []*interpreter.RegexOptimization{
	{Function: overloads.Matches, OverloadID: overloads.Matches, RegexIndex: 1, Factory: newMatcher},
	{Function: overloads.Matches, OverloadID: overloads.MatchesString, RegexIndex: 1, Factory: newMatcher},
}

// matcher is a call of matches() with a pattern of the rules.
type matcher struct {
	interpreter.InterpretableCall
	pattern      *regexp.Regexp
	instructions int
}

func newMatcher(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	n, err := instructions(pattern)
	return &matcher{call, re, n}, err
}

// instructions is the size of a compiled pattern: matching takes at most that many steps for each byte of a text.
func instructions(pattern string) (int, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, err
	}
	return len(prog.Inst), nil
}

// Exec matches, unless that costs too much.
func (m *matcher) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	arg := m.Args()[0].Exec(frame)
	text, ok := arg.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(arg)
	}
	if steps := len(text) * m.instructions; steps > freeSteps {
		v, _ := frame.Unwrap().(*Vars)
		if steps > maxSteps || v == nil || !v.charge(uint64(steps/stepsPerUnit)) {
			return types.WrapErr(ErrTooExpensive)
		}
	}
	return types.Bool(m.pattern.MatchString(string(text)))
}

// patterns reports regular expressions that do not compile, or could cost too much. CEL's own validator does not say
// why.
type patterns struct{}

func (patterns) Name() string { return "sluice.patterns" }

func (patterns) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, iss *cel.Issues) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(overloads.Matches)) {
		args := call.AsCall().Args()
		pattern := args[len(args)-1]
		text, ok := literal(pattern)
		if !ok {
			iss.ReportErrorAtID(pattern.ID(), "the pattern of matches() has to be a text of the rule, or an event could "+
				"choose it")
			continue
		}
		if _, err := regexp.Compile(text); err != nil {
			iss.ReportErrorAtID(pattern.ID(), "%v", err)
		} else if n, err := instructions(text); err != nil || n > maxInstructions {
			iss.ReportErrorAtID(pattern.ID(), "the pattern needs %d instructions, and at most %d are possible; repeat less "+
				"in it",
				n, maxInstructions)
		}
	}
}

func literal(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

// warnBelow is how long texts have to be possible for a pattern without a warning. A guess: longer than a page of text.
const warnBelow = 32 << 10

// warnOfPatterns warns of patterns that are too expensive for texts that are not that long.
func warnOfPatterns(a *ast.AST, warn func(id int64, message string)) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(overloads.Matches)) {
		args := call.AsCall().Args()
		pattern := args[len(args)-1]
		text, _ := literal(pattern)
		if n, err := instructions(text); err == nil && maxSteps/n < warnBelow {
			warn(pattern.ID(), fmt.Sprintf("the pattern is too expensive for texts of more than %d KiB: "+
				"such an event counts as too-expensive and is not decided. Repeat less in the pattern", maxSteps/n>>10))
		}
	}
}
