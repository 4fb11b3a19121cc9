package expr

import (
	"strings"
	"testing"
)

// TestPresenceIsTheSameDeclaredAndUndeclared: null is absent, and so is what an absent object would have.
func TestPresenceIsTheSameDeclaredAndUndeclared(t *testing.T) {
	props := declared(t, "coupon", "string", "any", "any", "cart", "map", "cart.total", "double", "n", "int")
	check := func(expression, properties string, want bool) {
		t.Helper()
		for name, declared := range map[string]Properties{"declared": props, "undeclared": nil} {
			f, n := scalar(t, "'"+strings.ReplaceAll(expression, "'", "''")+"'")
			p := NewScope(Event, declared).Condition(f, n, "match")
			if err := f.Err(); err != nil {
				t.Errorf("%s %s: %v", name, expression, err)
				continue
			}
			v := varsOf(properties)
			if got, err := p.Holds(v); err != nil || got != want {
				t.Errorf("%s: %s on %s is %t, %v; want %t", name, expression, properties, got, err, want)
			}
			p.short = nil // CEL says the same
			if got, err := p.Holds(v); err != nil || got != want {
				t.Errorf("%s, by CEL: %s on %s is %t, %v; want %t", name, expression, properties, got, err, want)
			}
		}
	}
	check("has(event.properties.coupon)", `{"coupon":"x"}`, true)
	check("has(event.properties.coupon)", `{"coupon":""}`, true)
	check("has(event.properties.coupon)", `{"coupon":null}`, false)
	check("has(event.properties.coupon)", `{"coupon":"x","coupon":null}`, false)
	check("has(event.properties.coupon)", `{}`, false)
	check("has(event.properties.coupon)", ``, false)
	check("has(event.properties.n)", `{"n":0}`, true)
	check("has(event.properties.cart.total)", `{"cart":{"total":1}}`, true)
	check("has(event.properties.cart.total)", `{"cart":{"total":null}}`, false)
	check("has(event.properties.cart.total)", `{"cart":{}}`, false)
	check("has(event.properties.cart.total)", `{"cart":null}`, false)
	check("has(event.properties.cart.total)", `{}`, false)
	check("has(event.properties.any.b.c.d)", `{"any":{"b":{"c":{"d":false}}}}`, true)
	check("has(event.properties.any.b.c.d)", `{"any":{"b":null}}`, false)
	check("has(event.properties.any.b.c.d)", `{}`, false)
	check("has(event.properties.any.b)", `{"any":5}`, false)
	check("has(event.properties.any[0].b)", `{"any":[]}`, false)
	check("has(event.properties.any[0].b)", `{"any":[{"b":1}]}`, true)
	check(`has(event.properties["cart.total"])`, `{"cart.total":1}`, true)
	check(`has(event.properties["cart.total"])`, `{"cart.total":null}`, false)
	check(`has(event.properties["cart.total"])`, `{}`, false)
	check(`!has(event.properties.coupon) || event.properties.coupon == ""`, `{"coupon":null}`, true)
	check("event.properties.any == null", `{"any":null}`, true)
	check("event.properties.any == null", `{"any":1}`, false)
	check("event.properties.any != null", `{"any":[]}`, true)

	for _, expression := range []string{"has(event.properties[0])", "has(1)", "has(event)"} {
		f, n := scalar(t, expression)
		NewScope(Event, nil).Condition(f, n, "match")
		if err := f.Err(); err == nil || !strings.Contains(err.Error(), "has() takes a member") {
			t.Errorf("%s: %v", expression, err)
		}
	}
	f, n := scalar(t, "has(event.properties.copon)")
	if NewScope(Event, props).Condition(f, n, "match"); f.Err() == nil {
		t.Error("has() of a property that is not declared is not a fault")
	}
}

// TestWhatIsMissingIsKnown from what is wrong.
func TestWhatIsMissingIsKnown(t *testing.T) {
	check := func(declared Properties, expression, properties string, want bool) {
		t.Helper()
		f, n := scalar(t, expression)
		p := NewScope(Event, declared).Condition(f, n, "match")
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Holds(varsOf(properties)); err == nil || IsMissing(err) != want {
			t.Errorf("%s on %s: %v is missing: %t, want %t", expression, properties, err, !want, want)
		}
	}
	props := declared(t, "a", "int")
	check(nil, "event.properties.a > 1", `{}`, true)
	check(props, "event.properties.a > 1", `{}`, true)
	check(props, "event.properties.a > 1", `{"a":null}`, true)
	check(nil, "event.properties.a.b > 1", `{}`, true)
	check(nil, "event.properties.a.b > 1", `{"a":{}}`, true)
	check(nil, "event.properties.a.b > 1", `{"a":null}`, true)
	check(nil, "event.properties.a[0] > 1", `{"a":[]}`, true)
	check(nil, "event.properties.a > 1", `{"a":"x"}`, false)
	check(props, "event.properties.a > 1", `{"a":"x"}`, false)
	check(nil, "event.properties.a * 2 > 1", `{"a":"x"}`, false)
	check(nil, "event.properties.a / 0 > 1", `{"a":1}`, false)
}
