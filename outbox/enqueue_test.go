package outbox

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// What PostgreSQL takes is compared with PostgreSQL itself in tests/outbox.
func TestStorable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`"a"`:                 true,
		`"\\u0000"`:           true, // a backslash and four digits
		`"\u0000"`:            false,
		`"\uD83D\ude00"`:      true,
		`"\ud83d"`:            false,
		`"\ud83d\n\ude00"`:    false,
		`"\ude00\ud83d"`:      false,
		`{"\u0041\\":["\""]}`: true,
	} {
		if got := storable([]byte(text)); got != want {
			t.Errorf("storable(%s) = %v, want %v", text, got, want)
		}
	}
}

// Each fault is named with its message, and none hides another.
func TestEncodeNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := encode([]Message{
		{EventType: "a", Payload: json.RawMessage(`1`)},
		{EventType: "\xff", Payload: json.RawMessage(`1`)},
		{EventType: "a", Payload: json.RawMessage(`{"a":`)},
		{EventType: "a\x00", Payload: json.RawMessage(`1`)},
	})
	if !errors.Is(err, ErrInvalid) {
		t.Fatalf("error = %v, want ErrInvalid", err)
	}
	for _, want := range []string{"message 1: \"\\xff\" is not UTF-8", "message 2: ", "message 3: holds a NUL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v; want one with %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "message 0") {
		t.Errorf("error = %v; nothing is wrong with message 0", err)
	}
}
