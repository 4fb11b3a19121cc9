package jsontext

// PostgreSQL's numeric, in which jsonb keeps numbers: 32768 groups of four digits before the decimal point, and a
// 14-bit count of digits after it. It takes no exponent from INT_MAX/2 on, whatever the
// number is.
const (
	numericDigits   = 131072
	numericScale    = 16383
	numericExponent = 1<<30 - 1
)

// MaxDigits is how many digits a number may have once PostgreSQL has written it out, for what Sluice stores: 1e131071
// has nine bytes as JSON, and 131,072 whenever it is read. All of a float64 fits: 1.8e308 has 309 digits, and
// 4.9406564584124654e-324 has 341.
const MaxDigits = 400

// numeric reports whether PostgreSQL's numeric can hold the JSON number, with how many digits it prints it, and how
// many bytes that is. Where it can't hold the number, both are 0.
func numeric(num []byte) (digits, printed int, ok bool) {
	var (
		whole, fraction int  // digits before and after the point
		lead            = -1 // digits before the first that is not zero
		exponent        int
		point           bool
	)
	for i := 0; i < len(num); i++ {
		switch c := num[i]; {
		case c >= '0' && c <= '9':
			if c != '0' && lead < 0 {
				lead = whole + fraction
			}
			if point {
				fraction++
			} else {
				whole++
			}
		case c == '.':
			point = true
		case c|0x20 == 'e':
			if exponent, ok = parseExponent(num[i+1:]); !ok {
				return 0, 0, false
			}
			i = len(num)
		}
	}
	scale := max(0, fraction-exponent)
	if scale > numericScale {
		return 0, 0, false
	}
	before := 0
	if lead >= 0 {
		before = whole - lead + exponent
	}
	if before > numericDigits {
		return 0, 0, false
	}
	digits = max(1, before) + scale
	printed = digits
	if num[0] == '-' {
		printed++
	}
	if scale > 0 {
		printed++
	}
	return digits, printed, true
}

// parseExponent returns what follows the e of a number, or false where PostgreSQL takes no such exponent.
func parseExponent(text []byte) (exponent int, ok bool) {
	negative := false
	for _, c := range text {
		switch c {
		case '-':
			negative = true
		case '+':
		default:
			exponent = exponent*10 + int(c-'0')
			if exponent >= numericExponent {
				return 0, false
			}
		}
	}
	if negative {
		exponent = -exponent
	}
	return exponent, true
}

// Printed is at most how many bytes PostgreSQL prints for a JSON text without faults or flaws, as jsonb: numbers
// without exponents, and a space after each colon and comma. What jsonb shortens counts as it is written: escapes
// that it does not need, numbers like 1.50e1, names that come twice.
func Printed(text []byte) int {
	s := Scanner{Text: text, MaxDigits: numericDigits + numericScale}
	n := 0
	for i := 0; i < len(text); {
		begin := i
		switch c := text[i]; c {
		case '"':
			if i, _ = s.String(i); i < 0 {
				return len(text)
			}
			n += i - begin
		case ' ', '\n', '\r', '\t':
			i++
		case ':', ',':
			i++
			n += 2
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			s.Grown = 0
			if i = s.number(i); i < 0 {
				return len(text)
			}
			n += i - begin + s.Grown
		default:
			i++
			n++
		}
	}
	return n
}
