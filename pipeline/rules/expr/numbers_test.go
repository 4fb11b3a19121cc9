package expr

import (
	"strings"
	"testing"
)

// TestArithmeticOfWholeAndBrokenNumbers: JavaScript writes 10.0 as 10, and a rule calculates with both.
func TestArithmeticOfWholeAndBrokenNumbers(t *testing.T) {
	check := func(expression, properties, want string) {
		t.Helper()
		f, n := scalar(t, "'"+strings.ReplaceAll(expression, "'", "''")+"'")
		tpl := NewScope(Event, nil).Template(f, n, "payload")
		if err := f.Err(); err != nil {
			t.Errorf("%s: %v", expression, err)
			return
		}
		got, err := tpl.Append(nil, varsOf(properties), 1000)
		switch {
		case strings.HasPrefix(want, "error: "):
			if err == nil || !strings.Contains(err.Error(), want[len("error: "):]) {
				t.Errorf("%s on %s is %s, %v; want %s", expression, properties, got, err, want)
			}
		case err != nil || string(got) != want:
			t.Errorf("%s on %s is %s, %v; want %s", expression, properties, got, err, want)
		}
	}
	check("event.properties.net * 1.19 > 100.0", `{"net":99.5}`, "true")
	check("event.properties.net * 1.19 > 100.0", `{"net":100}`, "true")
	check("event.properties.net * 1.19", `{"net":100}`, "119")
	check("event.properties.net * 1.19 > 100.0", `{"net":84}`, "false")
	check("event.properties.price * 2", `{"price":99.99}`, "199.98")
	check("event.properties.price * 2", `{"price":99}`, "198")
	check("event.properties.cents / 100 > 5.0", `{"cents":599}`, "true")
	check("event.properties.cents / 100", `{"cents":599}`, "5.99")
	check("event.properties.cents / 100", `{"cents":600}`, "6")
	check("event.properties.cents / 100 == 5.99", `{"cents":599}`, "true")
	check("event.properties.cents / 100 * 1.5", `{"cents":599}`, "8.985")
	check("100 / event.properties.cents", `{"cents":8}`, "12.5")
	check("event.properties.a + event.properties.b", `{"a":10,"b":0.5}`, "10.5")
	check("event.properties.a + event.properties.b", `{"a":0.5,"b":10}`, "10.5")
	check("event.properties.a - event.properties.b", `{"a":10,"b":0.5}`, "9.5")
	check("event.properties.a - 1 - 0.5", `{"a":10}`, "8.5")
	check("-event.properties.a", `{"a":10}`, "-10")
	check("-event.properties.a", `{"a":10.5}`, "-10.5")
	check("-event.properties.a", `{"a":9223372036854775808}`, "-9.223372036854776e+18")
	check(`event.properties["a"] * 0.5 + event.properties.o.b[1]`, `{"a":3,"o":{"b":[0,1]}}`, "2.5")
	check("coalesce(event.properties.cents, 0) / 100", `{"cents":599}`, "5.99")
	check("coalesce(0, event.properties.cents) / 100 > -1", `{"cents":599}`, "true")
	check("(has(event.properties.cents) ? event.properties.cents : 0) / 100", `{"cents":599}`, "5.99")
	check("(has(event.properties.x) ? 0 : event.properties.cents) / 100", `{"cents":599}`, "5.99")
	check("double(event.properties.a) * 1.5", `{"a":10}`, "15")
	check("int(event.properties.cents / 100)", `{"cents":599}`, "5")

	// What is whole stays whole, and exact.
	check("event.properties.a + 1", `{"a":9007199254740993}`, "9007199254740994")
	check("string(event.properties.a + 1)", `{"a":1000000}`, `"1000001"`)
	check("event.properties.a * event.properties.b", `{"a":9223372036854775807,"b":2}`, "1.8446744073709552e+19")
	check("event.properties.a + 1", `{"a":9223372036854775807}`, "9.223372036854776e+18")
	check("event.properties.a - 1", `{"a":-9223372036854775808}`, "-9.223372036854776e+18")
	check("event.properties.a / -1", `{"a":-9223372036854775808}`, "9.223372036854776e+18")
	check("event.properties.a * 1.0 > 0.0", `{"a":18446744073709551615}`, "true")
	check("event.properties.a == 9007199254740993", `{"a":9007199254740992}`, "false")

	// Texts and lists are joined, also where that is known only then.
	check("event.properties.a + event.properties.b", `{"a":"x","b":"y"}`, `"xy"`)
	check(`event.properties.a + "/" + event.user_id`, `{"a":"x"}`, `"x/u"`)
	check("event.properties.a + event.properties.b", `{"a":[1],"b":[2]}`, "[1,2]")
	check("event.received_at - event.occurred_at < duration('1m')", ``, "true")
	check("event.properties.a + event.properties.b", `{"a":"x","b":1}`, "error: no such overload")
	check("event.properties.a + event.properties.b", `{"a":1,"b":"x"}`, "error: a string is not a number")
	check("event.properties.a * 1.19", `{"a":"100"}`, "error: a string is not a number")
	check("event.properties.a - event.properties.b", `{"a":null,"b":1}`, "error: a null_type is not a number")
	check("-event.properties.a", `{"a":true}`, "error: a bool is not a number")

	// Zero is zero, and the rest after a division is that of whole numbers.
	check("event.properties.a / event.properties.b", `{"a":1.5,"b":0}`, "error: division by zero")
	check("event.properties.a / event.properties.b", `{"a":1,"b":0.0}`, "error: division by zero")
	check("event.properties.a % 4", `{"a":10}`, "2")
	check("event.properties.a % 4", `{"a":10.0}`, "2")
	check("event.properties.a % event.properties.b", `{"a":10,"b":4.0}`, "2")
	check("event.properties.a % 4", `{"a":10.5}`, "error: % takes whole numbers")
	check("event.properties.a % 0", `{"a":10}`, "error: modulus by zero")
}

// TestArithmeticWithDeclaredProperties: a whole number is a double where that is declared, and where an int is declared
// the operators are CEL's.
func TestArithmeticWithDeclaredProperties(t *testing.T) {
	props := declared(t, "net", "double", "cents", "int", "any", "any", "o", "map", "text", "string")
	check := func(expression, properties, want, warning string) {
		t.Helper()
		f, n := scalar(t, "'"+expression+"'")
		sc, warned := NewScope(Event, props), ""
		sc.Warn = func(_, _ int, _, message string) { warned += message }
		tpl := sc.Template(f, n, "payload")
		if err := f.Err(); err != nil {
			t.Errorf("%s: %v", expression, err)
			return
		}
		got, err := tpl.Append(nil, varsOf(properties), 1000)
		if err != nil || string(got) != want || (warned == "") != (warning == "") || !strings.Contains(warned, warning) {
			t.Errorf("%s on %s is %s, %v, warning %q; want %s, %q", expression, properties, got, err, warned, want, warning)
		}
	}
	check("event.properties.net", `{"net":100}`, "100", "")
	check("event.properties.net * 1.19", `{"net":100}`, "119", "")
	check("event.properties.net / 8", `{"net":100}`, "12.5", "")
	check("event.properties.net / 8.0", `{"net":100}`, "12.5", "")
	check("event.properties.net > 99", `{"net":100}`, "true", "")
	check("event.properties.cents * 1.19", `{"cents":100}`, "119", "")
	check("event.properties.cents / 100.0", `{"cents":599}`, "5.99", "")
	check("event.properties.any / 100", `{"any":599}`, "5.99", "")
	check("event.properties.o.cents / 100", `{"o":{"cents":599}}`, "5.99", "")
	check("event.properties.cents / 100", `{"cents":599}`, "5", "cut off")
	check("int(event.properties.cents / 100)", `{"cents":599}`, "5", "")
	check("double(event.properties.cents) / 100", `{"cents":599}`, "5.99", "")
	check("(has(event.properties.cents) ? event.properties.cents : 0) / 100", `{"cents":599}`, "5", "cut off")

	for _, expression := range []string{"event.properties.text * 2", "event.properties.net % 2",
		`event.properties.any * "x"`, "event.properties.net + event.user_id"} {
		f, n := scalar(t, "'"+expression+"'")
		if NewScope(Event, props).Template(f, n, "payload"); f.Err() == nil {
			t.Errorf("%s is not a fault", expression)
		}
	}
}
