package expr

import (
	"errors"
	"reflect"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// A member is present if it has a value other than null, declared or not. has() of a member is false if what it would
// be a member of is not present. CEL calls a null of a map present, and an absent parent an error.

// presence is the function that replaces has() for members of JSON objects.
const presence = "sluice_has"

// hasMacro expands has(). It also takes names with odd characters: has(event.properties["cart.total"]).
var hasMacro = cel.GlobalMacro(operators.Has, 1,
	func(eh cel.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *cel.Error) {
		switch of := args[0]; of.Kind() {
		case ast.SelectKind:
			return eh.NewPresenceTest(of.AsSelect().Operand(), of.AsSelect().FieldName()), nil
		case ast.CallKind:
			call := of.AsCall()
			if call.FunctionName() != operators.Index {
				break
			}
			if name, ok := literal(call.Args()[1]); ok {
				return eh.NewPresenceTest(call.Args()[0], name), nil
			}
		}
		return nil, eh.NewError(args[0].ID(), "has() takes a member, like has(event.properties.plan)")
	})

// presences declares the function that replaces has().
func presences() cel.EnvOption {
	return cel.Function("@"+presence, cel.Overload(presence, []*cel.Type{cel.DynType, cel.StringType}, cel.BoolType,
		cel.OverloadIsNonStrict(), cel.BinaryBinding(isPresent)))
}

// replacePresenceTests replaces has() of members whose parent's type is known only when it is met.
func replacePresenceTests(tree *ast.AST) {
	id, factory := ast.MaxID(tree), ast.NewExprFactory()
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.SelectKind || !e.AsSelect().IsTestOnly() {
			return
		}
		parent := e.AsSelect().Operand()
		if k := tree.GetType(parent.ID()).Kind(); k != types.MapKind && k != types.DynKind {
			return
		}
		id++
		tree.SetType(id, types.StringType)
		name := factory.NewLiteral(id, types.String(e.AsSelect().FieldName()))
		e.SetKindCase(factory.NewCall(e.ID(), "@"+presence, parent, name))
		tree.SetReference(e.ID(), ast.NewFunctionReference(presence))
	}))
}

func isPresent(parent, name ref.Val) ref.Val {
	switch p := parent.(type) {
	case *types.Err:
		if IsMissing(p) {
			return types.False
		}
		return p
	case *object:
		m := p.find(string(name.(types.String)))
		if m == nil {
			return types.False
		}
		if v := m.value(); types.IsError(v) {
			return v
		}
		return types.Bool(!m.null())
	}
	return types.False
}

// errMissing is the error of a declared property that the event does not have.
type errMissing struct{ error }

// IsMissing reports whether an expression has no value since the event lacks a member that it uses.
func IsMissing(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if _, ok := err.(errMissing); ok || reflect.TypeOf(err) == celMissing() {
			return true
		}
	}
	return false
}

// celMissing is the type of CEL's errors about members and elements that are not there. CEL does not export it.
var celMissing = sync.OnceValue(func() reflect.Type {
	env, err := cel.NewEnv()
	if err != nil {
		panic(err)
	}
	checked, iss := env.Compile("dyn({}).a")
	if iss.Err() != nil {
		panic(iss.Err())
	}
	program, err := env.Program(checked)
	if err != nil {
		panic(err)
	}
	_, _, err = program.Eval(cel.NoVars())
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return reflect.TypeOf(err)
})
