package expr

import (
	"cmp"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"sluice.example/sluice/pipeline"
)

// shortcut is a condition as plain Go, or the part of it that can be: comparisons of the event's texts and properties
// with constants, joined by &&, || and !. It costs about 40 ns, where CEL costs 260. Its verdict is that of CEL;
// where it has none (another form of expression, a missing property, values of different types) CEL is asked.
// That is sound since CEL's && and || give an answer when one side decides it, whether or not the other is an error.
type shortcut struct {
	op operator
	// parts are the operands of &&, || and !; nil is one that only CEL knows.
	parts []*shortcut
	// What is compared: a text of the event, or else a property.
	text     func(*pipeline.Event) string
	property string
	// declared is the property's type, nil where it has none.
	declared *types.Type
	constant ref.Val
	// constantText is the constant where it is a text.
	constantText string
}

type operator uint8

const (
	has operator = iota
	and
	or
	not
	equal
	unequal
	less
	atMost
	greater
	atLeast
)

// celOperators names those that are calls with one or two operands.
var celOperators = map[string]operator{
	operators.LogicalAnd: and, operators.LogicalOr: or, operators.LogicalNot: not,
	operators.Equals: equal, operators.NotEquals: unequal,
	operators.Less: less, operators.LessEquals: atMost, operators.Greater: greater, operators.GreaterEquals: atLeast,
}

// verdict is the answer of a shortcut about an event.
type verdict uint8

const (
	// ask: CEL has to be asked.
	ask verdict = iota
	no
	yes
)

func verdictOf(b bool) verdict {
	if b {
		return yes
	}
	return no
}

// shortcutOf returns nil where there is none.
func shortcutOf(checked *ast.AST, e ast.Expr) *shortcut {
	switch e.Kind() {
	case ast.SelectKind:
		s := memberOf(checked, e)
		switch {
		case s == nil:
		case e.AsSelect().IsTestOnly():
			s.op = has
		default: // a condition on its own
			return s.compareWith(equal, types.True)
		}
		return s
	case ast.CallKind:
		name, args := e.AsCall().FunctionName(), e.AsCall().Args()
		if name == operators.In {
			if s := memberOf(checked, args[0]); s != nil && args[1].Kind() == ast.ListKind {
				return s.isOneOf(args[1].AsList().Elements())
			}
		}
		switch op := celOperators[name]; op {
		case has: // none of ours
		case and, or, not:
			return joined(checked, op, args)
		default:
			if s := memberOf(checked, args[0]); s != nil && args[1].Kind() == ast.LiteralKind {
				return s.compareWith(op, args[1].AsLiteral())
			}
		}
	}
	return nil
}

// joined is a && b && c, a || b || c, or !a.
func joined(checked *ast.AST, op operator, args []ast.Expr) *shortcut {
	s := &shortcut{op: op}
	for _, arg := range args {
		part := shortcutOf(checked, arg)
		if part != nil && part.op == op && op != not {
			s.parts = append(s.parts, part.parts...)
		} else {
			s.parts = append(s.parts, part)
		}
	}
	if slices.ContainsFunc(s.parts, func(p *shortcut) bool { return p != nil }) {
		return s
	}
	return nil
}

// memberOf recognises event.TEXT and event.properties.NAME, also within has().
func memberOf(checked *ast.AST, e ast.Expr) *shortcut {
	if e.Kind() != ast.SelectKind {
		return nil
	}
	name, of := e.AsSelect().FieldName(), e.AsSelect().Operand()
	if isEvent(of) && eventTexts[name] != nil {
		return &shortcut{text: eventTexts[name]}
	}
	if of.Kind() != ast.SelectKind || of.AsSelect().IsTestOnly() || of.AsSelect().FieldName() != "properties" ||
		!isEvent(of.AsSelect().Operand()) {
		return nil
	}
	s := &shortcut{property: name}
	if t := checked.GetType(e.ID()); t.Kind() != types.DynKind && !e.AsSelect().IsTestOnly() {
		s.declared = t
	}
	return s
}

func isEvent(e ast.Expr) bool {
	return e.Kind() == ast.IdentKind && (e.AsIdent() == "event" || e.AsIdent() == "trigger")
}

func (s *shortcut) compareWith(op operator, constant ref.Val) *shortcut {
	with := *s
	with.op, with.constant = op, constant
	switch c := constant.(type) {
	case types.String:
		with.constantText = string(c)
	case types.Bool:
		if op != equal && op != unequal {
			return nil
		}
	case types.Int, types.Double:
	default:
		return nil
	}
	if _, isText := constant.(types.String); s.text != nil && !isText {
		return nil
	}
	return &with
}

// isOneOf is a comparison with each.
func (s *shortcut) isOneOf(list []ast.Expr) *shortcut {
	if len(list) == 0 {
		return nil
	}
	one := &shortcut{op: or}
	for _, e := range list {
		if e.Kind() != ast.LiteralKind {
			return nil
		}
		with := s.compareWith(equal, e.AsLiteral())
		if with == nil {
			return nil
		}
		one.parts = append(one.parts, with)
	}
	return one
}

// holds reports whether the condition holds for an event; ask where there is no shortcut.
func (s *shortcut) holds(r *view) verdict {
	if s == nil {
		return ask
	}
	switch s.op {
	case and:
		return s.join(r, no, yes)
	case or:
		return s.join(r, yes, no)
	case not:
		switch s.parts[0].holds(r) {
		case yes:
			return no
		case no:
			return yes
		}
		return ask
	}
	if s.text != nil {
		text := s.text(r.event)
		if s.op == has {
			return verdictOf(text != "")
		}
		return s.compared(strings.Compare(text, s.constantText))
	}
	m := r.props.find(s.property)
	switch {
	case s.op != has:
		return s.compare(m)
	case m == nil:
		return no
	case types.IsError(m.value()):
		return ask
	}
	return verdictOf(!m.null())
}

// join is decisive as soon as one part is, and otherwise the other verdict if all parts agree on that.
func (s *shortcut) join(r *view, decisive, otherwise verdict) verdict {
	out := otherwise
	for _, part := range s.parts {
		switch part.holds(r) {
		case decisive:
			return decisive
		case ask:
			out = ask
		}
	}
	return out
}

// compare compares a property with the constant.
func (s *shortcut) compare(m *member) verdict {
	if m == nil {
		return ask
	}
	v := m.value()
	if s.declared != nil && v.Type() != s.declared {
		var err error
		if v, err = as(s.property, v, s.declared); err != nil {
			return ask
		}
	}
	switch c := s.constant.(type) {
	case types.String:
		if v, ok := v.(types.String); ok {
			return s.compared(strings.Compare(string(v), string(c)))
		}
	case types.Int:
		switch v := v.(type) {
		case types.Int:
			return s.compared(cmp.Compare(v, c))
		case types.Double:
			if exact(c) {
				return s.compared(cmp.Compare(v, types.Double(c)))
			}
		}
	case types.Double:
		switch v := v.(type) {
		case types.Int:
			if exact(v) {
				return s.compared(cmp.Compare(types.Double(v), c))
			}
		case types.Double:
			return s.compared(cmp.Compare(v, c))
		}
	case types.Bool:
		if v, ok := v.(types.Bool); ok {
			return verdictOf((v == c) == (s.op == equal))
		}
	}
	return ask
}

// exact: beyond this not every integer is a double, and CEL's operators differ about what is equal.
func exact(i types.Int) bool { return -1<<53 <= i && i <= 1<<53 }

// compared is the verdict of an operator whose left side is less (-1), equal (0) or greater (1).
func (s *shortcut) compared(order int) verdict {
	switch s.op {
	case equal:
		return verdictOf(order == 0)
	case unequal:
		return verdictOf(order != 0)
	case less:
		return verdictOf(order < 0)
	case atMost:
		return verdictOf(order <= 0)
	case greater:
		return verdictOf(order > 0)
	}
	return verdictOf(order >= 0)
}
