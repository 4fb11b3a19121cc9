package console

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/duration"
	"sluice.example/sluice/internal/spell"
)

// badForm is the answer to a value that can't be read.
func badForm(field, format string, args ...any) error {
	return problem{http.StatusBadRequest, "bad_" + field, field + ": " + fmt.Sprintf(format, args...), ""}
}

// text returns a field of the query or the form, without space around it.
func (r *request) text(field string) string { return strings.TrimSpace(r.form.Get(field)) }

// whole reads a whole number of at least 0; an empty field is 0.
func (r *request) whole(field string, most int64) (int64, error) {
	text := r.text(field)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, badForm(field, "%q; write a whole number from 0 to %d", text, most)
	}
	return n, nil
}

// length reads a time such as 12h or 30d; an empty field is 0.
func (r *request) length(field string) (time.Duration, error) {
	text := r.text(field)
	if text == "" {
		return 0, nil
	}
	d, err := duration.Parse(text)
	if err != nil {
		return 0, badForm(field, "%v", err)
	}
	if d < 0 {
		return 0, badForm(field, "%q; write a time that is not negative", text)
	}
	return d, nil
}

// oneOf reads a field that is empty or one of known.
func (r *request) oneOf(field string, known []string) (string, error) {
	text := r.text(field)
	for _, k := range known {
		if text == k {
			return text, nil
		}
	}
	if text == "" {
		return "", nil
	}
	return "", badForm(field, "%q is not known%s", text, spell.DidYouMean(text, known))
}
