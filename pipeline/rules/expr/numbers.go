package expr

import (
	"errors"
	"math"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// JSON has one kind of number, and JavaScript writes 10.0 as 10. CEL has three, calculates with two of one kind only,
// and cuts off what is left of an int divided by an int. What follows calculates with JSON's numbers as with numbers:
// the result is whole where both operands are and it fits, and a double otherwise. It applies to each operator with an
// operand whose type is known only when it is met, or with operands of different kinds. Where both are known to be
// ints, by declaration, the operators are CEL's.

// arithmetic is an operator that calculates.
type arithmetic struct {
	// overload names the function that replaces the operator, and mixed is how CEL's names for kinds of operands begin.
	overload, mixed string
	apply           func(a, b ref.Val) ref.Val
	// whole: two whole operands make a whole number, whatever it is.
	whole bool
}

var arithmetics = map[string]arithmetic{
	operators.Add:      {overload: "sluice_add", mixed: "add", apply: add},
	operators.Subtract: {overload: "sluice_subtract", mixed: "subtract", apply: subtract},
	operators.Multiply: {overload: "sluice_multiply", mixed: "multiply", apply: multiply},
	operators.Divide:   {overload: "sluice_divide", mixed: "divide", apply: divide},
	operators.Modulo:   {overload: "sluice_modulo", apply: modulo, whole: true},
}

var negation = "sluice_negate"

// numbers lets CEL's operators take operands of different kinds, and declares the functions that replace them.
func numbers() []cel.EnvOption {
	// The functions are called by what relax puts into a compiled expression. No expression can name them.
	opts := []cel.EnvOption{cel.Function("@"+negation,
		cel.Overload(negation, []*cel.Type{cel.DynType}, cel.DynType, cel.UnaryBinding(negate)))}
	kinds := []struct {
		name string
		t    *cel.Type
	}{{"int64", cel.IntType}, {"uint64", cel.UintType}, {"double", cel.DoubleType}}
	for operator, a := range arithmetics {
		opts = append(opts, cel.Function("@"+a.overload,
			cel.Overload(a.overload, []*cel.Type{cel.DynType, cel.DynType}, cel.DynType, cel.BinaryBinding(a.apply))))
		if a.whole {
			continue
		}
		var mixed []cel.FunctionOpt
		for _, left := range kinds {
			for _, right := range kinds {
				if left != right {
					mixed = append(mixed, cel.Overload(a.mixed+"_"+left.name+"_"+right.name, []*cel.Type{left.t, right.t},
						cel.DoubleType))
				}
			}
		}
		opts = append(opts, cel.Function(operator, mixed...))
	}
	return opts
}

// relax replaces the operators that calculate with what is not known to be of one kind.
func relax(tree *ast.AST) {
	ast.PostOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		args := e.AsCall().Args()
		switch name := e.AsCall().FunctionName(); {
		case name == operators.Negate && !isKnown(tree, args[0]):
			tree.SetReference(e.ID(), ast.NewFunctionReference(negation))
		case len(args) == 2 && arithmetics[name].overload != "":
			left, right := tree.GetType(args[0].ID()), tree.GetType(args[1].ID())
			if !isKnown(tree, args[0]) || !isKnown(tree, args[1]) || isNumeric(left) && left.Kind() != right.Kind() {
				tree.SetReference(e.ID(), ast.NewFunctionReference(arithmetics[name].overload))
			}
		}
	}))
}

func isKnown(tree *ast.AST, e ast.Expr) bool {
	k := tree.GetType(e.ID()).Kind()
	return k != types.DynKind && k != types.TypeParamKind
}

func isNumeric(t *types.Type) bool {
	return t.Kind() == types.IntKind || t.Kind() == types.UintKind || t.Kind() == types.DoubleKind
}

// warnOfDivisions warns where the remainder is cut off, unless int() around the division says that it is meant.
func warnOfDivisions(tree *ast.AST, warn func(id int64, message string)) {
	meant := map[int64]bool{}
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		switch args := e.AsCall().Args(); e.AsCall().FunctionName() {
		case overloads.TypeConvertInt:
			meant[args[0].ID()] = true
		case operators.Divide:
			if tree.GetType(args[0].ID()).Kind() == types.IntKind && tree.GetType(args[1].ID()).Kind() == types.IntKind &&
				!meant[e.ID()] {
				warn(e.ID(), "both sides are ints, so what is left over is cut off (599 / 100 is 5): write "+
					"double(...) around one of them, or int(...) around the division where that is meant")
			}
		}
	}))
}

var errZero = errors.New("division by zero")

// whole returns the operands as ints if both are whole and within 64 bits.
func whole(a, b ref.Val) (x, y types.Int, ok bool) {
	if x, ok = asInt(a); ok {
		y, ok = asInt(b)
	}
	return x, y, ok
}

func asInt(v ref.Val) (types.Int, bool) {
	switch v := v.(type) {
	case types.Int:
		return v, true
	case types.Uint:
		return types.Int(v), v <= math.MaxInt64
	}
	return 0, false
}

// double returns the operands as doubles if both are numbers.
func double(a, b ref.Val) (x, y types.Double, ok bool) {
	if x, ok = asDouble(a); ok {
		y, ok = asDouble(b)
	}
	return x, y, ok
}

func asDouble(v ref.Val) (types.Double, bool) {
	switch v := v.(type) {
	case types.Int:
		return types.Double(v), true
	case types.Uint:
		return types.Double(v), true
	case types.Double:
		return v, true
	}
	return 0, false
}

// exactly returns the result of CEL's operator on two ints, unless it is beyond 64 bits.
func exactly(result ref.Val) (ref.Val, bool) { return result, !types.IsError(result) }

// add also joins texts, lists, times and durations.
func add(a, b ref.Val) ref.Val {
	if x, y, ok := whole(a, b); ok {
		if sum, ok := exactly(x.Add(y)); ok {
			return sum
		}
	}
	if x, y, ok := double(a, b); ok {
		return x + y
	}
	if _, number := asDouble(a); !number {
		if l, ok := a.(traits.Adder); ok {
			return l.Add(b)
		}
	}
	return notNumber(a, b)
}

func subtract(a, b ref.Val) ref.Val {
	if x, y, ok := whole(a, b); ok {
		if difference, ok := exactly(x.Subtract(y)); ok {
			return difference
		}
	}
	if x, y, ok := double(a, b); ok {
		return x - y
	}
	switch a := a.(type) {
	case types.Timestamp:
		return a.Subtract(b)
	case types.Duration:
		return a.Subtract(b)
	}
	return notNumber(a, b)
}

func multiply(a, b ref.Val) ref.Val {
	if x, y, ok := whole(a, b); ok {
		if product, ok := exactly(x.Multiply(y)); ok {
			return product
		}
	}
	if x, y, ok := double(a, b); ok {
		return x * y
	}
	return notNumber(a, b)
}

// divide fails for zero, however that is written.
func divide(a, b ref.Val) ref.Val {
	x, y, ok := double(a, b)
	switch {
	case !ok:
		return notNumber(a, b)
	case y == 0:
		return types.WrapErr(errZero)
	}
	if i, j, ok := whole(a, b); ok && j != -1 && i%j == 0 {
		return i / j
	}
	return x / y
}

// modulo takes whole numbers, also those that are written as 10.0.
func modulo(a, b ref.Val) ref.Val {
	if _, _, ok := double(a, b); !ok {
		return notNumber(a, b)
	}
	x, y, ok := whole(truncated(a), truncated(b))
	if !ok {
		return types.NewErr("%% takes whole numbers of at most 64 bits, got %v and %v", a.Value(), b.Value())
	}
	return x.Modulo(y)
}

// truncated is the int that a double is equal to, or the value itself if there is none.
func truncated(v ref.Val) ref.Val {
	if d, ok := v.(types.Double); ok && d >= -1<<53 && d <= 1<<53 && d == types.Double(int64(d)) {
		return types.Int(d)
	}
	return v
}

func negate(v ref.Val) ref.Val {
	if i, ok := asInt(v); ok {
		if n, ok := exactly(i.Negate()); ok {
			return n
		}
	}
	if d, ok := asDouble(v); ok {
		return -d
	}
	return notNumber(v, v)
}

// notNumber is the error of an operand that is not a number.
func notNumber(a, b ref.Val) ref.Val {
	if _, ok := asDouble(a); ok {
		a = b
	}
	return types.NewErr("a %s is not a number to calculate with", a.Type().TypeName())
}
