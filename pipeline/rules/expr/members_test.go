package expr

import (
	"encoding/json"
	"testing"

	"github.com/tidwall/gjson"
)

// FuzzMembers holds our splitting of objects against gjson's.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{}`, ` { "a" : 1 , "b":"x\"y\\","c":[1,{"d":"]}"}],"a":null,"\u0041\n":-1.5e3 } `,
		`{"":""}`, `[1]`, `7`, `"x"`, "",
		`{"a":`, `{"a"`, `{"a":1`, `{"a":{"b":[`, `{"a":"`, `{"a":tru`, `{,}`, `{"a" 1}`,
		`{"a":1,"b":"two","c":true,"d":4.5}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := appendMembers(nil, s)
		if !json.Valid([]byte(s)) {
			return // it may give anything, but has to end
		}
		var want []member
		if parsed := gjson.Parse(s); parsed.IsObject() {
			parsed.ForEach(func(k, v gjson.Result) bool {
				want = append(want, member{key: k.Str, raw: v.Raw})
				return true
			})
		}
		if len(got) != len(want) {
			t.Fatalf("members of %s: got %q, want %q", s, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("members of %s: got %q, want %q", s, got, want)
			}
		}
	})
}
