package spell

import "testing"

func TestNearest(t *testing.T) {
	known := []string{"cooldown", "match", "subject", "send_to"}
	for _, c := range []struct {
		got  string
		most int
		want string
	}{
		{"cooldwon", 1, "cooldown"},
		{"COOLDOWN", 0, "cooldown"},
		{"sbject", 2, "subject"},
		{"mtach", 1, "match"},
		{"sendto", 1, "send_to"},
		{"payload", 2, ""},
		{"", 2, ""},
		{"xatch", 0, ""},
	} {
		if got := Nearest(c.got, known, c.most); got != c.want {
			t.Errorf("Nearest(%q, %v, %d) = %q, want %q", c.got, known, c.most, got, c.want)
		}
	}
	if got := Nearest("ab", []string{"ac", "ad"}, 1); got != "ac" {
		t.Errorf("of two equally near words Nearest took %q, want the first", got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1},
		{"kitten", "sitting", 3}, {"ca", "abc", 3},
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"match", "cooldown", "on", "batch"}
	for _, c := range []struct{ got, want string }{
		{"cooldwon", `; did you mean "cooldown"?`},
		{"On", `; did you mean "on"?`},
		{"xatch", `; did you mean "batch"?`}, // of two that are equally near
		{"match", ""},
		{"payload", ""},
		{"", ""},
	} {
		if got := DidYouMean(c.got, known); got != c.want {
			t.Errorf("DidYouMean(%q, %v) = %q, want %q", c.got, known, got, c.want)
		}
	}
}
