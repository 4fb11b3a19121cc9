package ingest

import (
	"fmt"

	"sluice.example/sluice/internal/jsontext"
)

// flawReason completes "properties ...".
func flawReason(f jsontext.Flaw) string {
	switch f {
	case jsontext.FlawNUL:
		return `holds the character U+0000 (\u0000), which PostgreSQL cannot store`
	case jsontext.FlawSurrogate:
		return `holds one half of a UTF-16 surrogate pair (\ud800 to \udfff) without the other, which is not a character`
	case jsontext.FlawUTF8:
		return "holds bytes that are not valid UTF-8"
	case jsontext.FlawControl:
		return `holds a control character that is not escaped (write a line break as \n)`
	case jsontext.FlawNumber:
		return "holds a number outside PostgreSQL's range (131072 digits before the decimal point, 16383 after it)"
	case jsontext.FlawDigits:
		return fmt.Sprintf("holds a number that PostgreSQL writes out in more than %d digits", jsontext.MaxDigits)
	case jsontext.FlawDepth:
		return fmt.Sprintf("is nested more than %d levels deep", maxDepth)
	}
	return ""
}

// flawCause is the reason in one word, for the metric.
func flawCause(f jsontext.Flaw) string {
	switch f {
	case jsontext.FlawDepth:
		return causeTooDeep
	case jsontext.FlawDigits:
		return causeTooLong
	case jsontext.FlawControl:
		return causeMalformed
	}
	return causeUnstorable
}
