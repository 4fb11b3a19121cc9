package expr

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"cel.dev/cel-go/common/types"
	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/yamlfile"
	"sluice.example/sluice/pipeline"
)

// conditionOf compiles a condition, for events whose properties are declared as told; nil if it is not valid.
func conditionOf(declared Properties, expr string) *Program {
	return NewScope(Event, declared).Condition(yamlfile.Parse("f", nil), &yaml.Node{Kind: yaml.ScalarNode, Value: expr,
		Line: 1, Column: 1}, "")
}

// TestShortcutAnswers: which conditions need no CEL, and what becomes of the others.
func TestShortcutAnswers(t *testing.T) {
	ev := pipeline.Event{Name: "x", UserID: "u", Properties: []byte(
		`{"huge":18446744073709551616,"n":5,"f":2.5,"s":"a\u0062","t":true,"o":{"n":1},"z":null,"big":18446744073709551615}`)}
	for expr, want := range map[string]verdict{
		`event.properties.n == 5`:                                            yes,
		`event.properties.n >= 6`:                                            no,
		`event.properties.n < 5.5`:                                           yes,
		`event.properties.f > 2`:                                             yes,
		`event.properties.s == "ab"`:                                         yes,
		`event.properties.s != "ab"`:                                         no,
		`event.properties.s in ["x", "ab"]`:                                  yes,
		`event.properties.n in [1, 2]`:                                       no,
		`event.properties.t`:                                                 yes,
		`!event.properties.t`:                                                no,
		`event.event_name == "x" && event.user_id in ["v", "u"]`:             yes,
		`has(event.properties.n) && !has(event.properties.missing)`:          yes,
		`has(event.user_id) || event.properties.missing == 1`:                yes,
		`has(event.session_id)`:                                              no,
		`event.properties.n == 6 && event.properties.missing == 1`:           no,
		`event.properties.missing == 1 && event.properties.n == 6`:           no,
		`event.user_id.startsWith("v") && event.properties.n == 6`:           no,
		`event.properties.n == 5 && event.user_id.startsWith("u")`:           ask,
		`event.properties.missing == 1`:                                      ask,
		`event.properties.n == 5 && event.properties.missing == 1`:           ask,
		`event.properties.n == "5"`:                                          ask,
		`event.properties.z == 5`:                                            ask,
		`has(event.properties.z)`:                                            no,
		`has(event.properties.huge)`:                                         ask,
		`event.properties.big > 5`:                                           ask,
		`event.properties.o.n == 1`:                                          ask,
		`event.properties["n"] == 5`:                                         ask,
		`event.received_at > timestamp("2020-01-01T00:00:00Z")`:              ask,
		`event.properties.n == 5 ? event.properties.t : event.user_id == ""`: ask,
	} {
		var r view
		r.set(&ev)
		if got := conditionOf(nil, expr).short.holds(&r); got != want {
			t.Errorf("%s: got %d, want %d", expr, got, want)
		}
	}
}

// FuzzShortcut holds what shortcuts say against CEL, over random conditions, properties and declarations.
func FuzzShortcut(f *testing.F) {
	for seed := range 500 {
		f.Add(uint64(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var declared Properties
		if rng.IntN(2) == 0 {
			kinds := []*types.Type{types.IntType, types.DoubleType, types.StringType, types.BoolType, types.DynType}
			declared = Properties{}
			for _, name := range randomNames {
				declared[name] = Type{kinds[rng.IntN(len(kinds))]}
			}
		}
		var p *Program
		var expr string
		for range 100 { // until one is valid with these declarations
			expr = randomCondition(rng, 3)
			if p = conditionOf(declared, expr); p != nil {
				break
			}
		}
		if p == nil {
			return
		}
		var v Vars
		for range 20 {
			ev := pipeline.Event{Name: pick(rng, randomTexts), UserID: pick(rng, randomTexts), Properties: randomObject(rng, 1)}
			v.SetEvent(&ev)
			got := p.short.holds(&v.view)
			out, err := p.eval(&v)
			switch {
			case got == ask, err == nil && got == yes && out == types.True, err == nil && got == no && out == types.False:
			default:
				t.Fatalf("%s, declared as %v, on %s %s %s: the shortcut says %d, CEL %v, %v", expr, declared, ev.Name, ev.UserID,
					ev.Properties, got, out, err)
			}
		}
	})
}

var (
	randomNames    = []string{"a", "b", "c", "d"}
	randomTexts    = []string{"", "x", "y", "é", `q"`}
	randomLiterals = []string{"0", "1", "-1", "2", "9007199254740993", "9223372036854775807", "-9223372036854775808", "1u",
		"0.0", "1.0", "1.5", "-1.5",
		"9007199254740992.0", "9.3e18", "-1e300", `""`, `"x"`, `"y"`, `"é"`, `"q\""`, "true", "false", "null"}
	randomValues = []string{"0", "-0", "1", "-1", "2", "9007199254740993", "9223372036854775807", "-9223372036854775808",
		"9223372036854775808", "18446744073709551616",
		"0.0", "-0.0", "1.0", "1e0", "1.5", "-1.5", "9007199254740992.0", "9.3e18", "1e999", "-1e300", `""`, `"x"`, `"y"`,
		`"\u00e9"`, `"é"`, `"q\""`, "true", "false", "null", "[1,2]", "[]"}
)

func pick(rng *rand.Rand, from []string) string { return from[rng.IntN(len(from))] }

func randomObject(rng *rand.Rand, depth int) []byte {
	if rng.IntN(20) == 0 && depth == 1 {
		return nil
	}
	var members []string
	for range rng.IntN(7) { // so that some are repeated
		value := pick(rng, randomValues)
		if depth > 0 && rng.IntN(8) == 0 {
			value = string(randomObject(rng, depth-1))
		}
		members = append(members, fmt.Sprintf(`"%s" : %s`, pick(rng, randomNames), value))
	}
	return []byte("{" + strings.Join(members, ",") + "}")
}

func randomMember(rng *rand.Rand) string {
	switch rng.IntN(8) {
	case 0:
		return "event.event_name"
	case 1:
		return "event.user_id"
	case 2:
		return "event.properties." + pick(rng, randomNames) + "." + pick(rng, randomNames)
	case 3:
		return `event.properties["` + pick(rng, randomNames) + `"]`
	}
	return "event.properties." + pick(rng, randomNames)
}

func randomCondition(rng *rand.Rand, depth int) string {
	if depth > 0 {
		a, b := func() string { return randomCondition(rng, depth-1) }, func() string { return randomCondition(rng, depth-1) }
		switch rng.IntN(10) {
		case 0, 1, 2:
			return "(" + a() + " && " + b() + ")"
		case 3, 4:
			return "(" + a() + " || " + b() + ")"
		case 5:
			return "!(" + a() + ")"
		case 6:
			return "(" + a() + " ? " + b() + " : " + a() + ")"
		}
	}
	switch m := randomMember(rng); rng.IntN(8) {
	case 0:
		of := "has(event.properties." + pick(rng, randomNames)
		if rng.IntN(3) == 0 {
			of += "." + pick(rng, randomNames)
		}
		return of + ")"
	case 1:
		return "has(event.user_id)"
	case 2:
		var list []string
		for range rng.IntN(4) {
			list = append(list, pick(rng, randomLiterals))
		}
		return m + " in [" + strings.Join(list, ", ") + "]"
	case 3:
		return m
	case 4:
		return pick(rng, randomLiterals) + " == " + m
	default:
		return m + " " + pick(rng, []string{"==", "!=", "<", "<=", ">", ">="}) + " " + pick(rng, randomLiterals)
	}
}
