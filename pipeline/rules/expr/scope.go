package expr

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// About is what an expression is about, which decides what it may name.
type About uint8

const (
	// Event expressions name event.
	Event About = iota
	// Timer expressions name trigger, which is an event, key, since and late_by.
	Timer
	// Digest expressions name digest: count, subject and since.
	Digest
	// Rate expressions name rate: what was counted, and how it compares.
	Rate
)

// Scope is what an expression may name: variables, and the members of their types. It is safe for concurrent use.
type Scope struct {
	// Warn, if set, gets what is not wrong in an expression but probably not meant, with its place in the file.
	Warn func(line, col int, where, message string)

	env *cel.Env
	// compiled are the programs of texts without a fault or a warning; many rules have the same.
	compiled sync.Map
	// names and members are for "did you mean".
	names, members []string
}

// Type is the declared type of a property.
type Type struct{ cel *types.Type }

var declarable = map[string]*types.Type{
	"string": types.StringType, "int": types.IntType, "double": types.DoubleType, "bool": types.BoolType,
	"list": types.NewListType(types.DynType), "map": types.NewMapType(types.StringType, types.DynType),
	"any": types.DynType,
}

// TypeNames are the names of the types that a property can have, sorted.
var TypeNames = slices.Sorted(maps.Keys(declarable))

// TypeNamed returns a type by its name; ok is false where there is none.
func TypeNamed(name string) (t Type, ok bool) {
	t.cel, ok = declarable[name]
	return t, ok
}

// Properties are the declared properties of events. Nil means that nothing is declared: any property may be named, and
// its type is only known when it is met.
type Properties map[string]Type

// Merge adds the properties of another kind of event. One that has two types has any.
func (p Properties) Merge(other Properties) {
	for name, t := range other {
		if was, ok := p[name]; ok && was != t {
			t = Type{types.DynType}
		}
		p[name] = t
	}
}

// objects maps the name of an object type to its members.
type objects map[string]map[string]*types.FieldType

// NewScope makes the scope of expressions about something, with the properties that its events declare.
func NewScope(about About, declared Properties) *Scope {
	fields := maps.Clone(eventFields)
	objs := objects{"event": fields, "digest": digestFields, "rate": rateFields}
	props := types.NewMapType(types.StringType, types.DynType)
	if declared != nil {
		objs["properties"] = map[string]*types.FieldType{}
		props = types.NewObjectType("properties")
		for name, t := range declared {
			objs["properties"][name] = propertyField(name, t.cel)
		}
	}
	fields["properties"] = propertiesField(props)
	variables := map[string]*types.Type{}
	switch about {
	case Event:
		variables["event"] = eventType
	case Timer:
		variables["trigger"] = eventType
		variables["key"] = types.StringType
		variables["since"] = types.TimestampType
		variables["late_by"] = types.IntType
	case Digest:
		variables["digest"] = types.NewObjectType("digest")
	case Rate:
		variables["rate"] = types.NewObjectType("rate")
	}
	sc, err := newScope(variables, objs)
	if err != nil {
		panic(err) // our own declarations
	}
	return sc
}

// newScope makes the environment: the standard operators and functions, has(), coalesce(), and nothing that loops or
// reaches outside.
func newScope(variables map[string]*types.Type, objs objects) (*Scope, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	opts := []cel.EnvOption{
		cel.CustomTypeProvider(&provider{registry, objs}),
		cel.ClearMacros(), cel.Macros(hasMacro),
		cel.ASTValidators(patterns{}, cel.ValidateTimestampLiterals(), cel.ValidateDurationLiterals()),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(16 << 10),
		cel.ParserRecursionLimit(50),
		coalesce(), presences(),
	}
	opts = append(opts, numbers()...)
	sc := &Scope{}
	for name, t := range variables {
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

// coalesce returns the first argument that is there: not an error, not null, not an empty text. Null if none is.
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
