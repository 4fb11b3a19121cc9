package jsontext

// PostgreSQL's numeric, in which jsonb keeps numbers: 32768 groups of four digits before the decimal point, and a
// 14-bit count of digits after it. It takes no exponent from INT_MAX/2 on, whatever the
// number is.
const (
	numericDigits   = 131072
	numericScale    = 16383
	numericExponent = 1<<30 - 1
)

// numericHolds reports whether PostgreSQL's numeric can hold the JSON number.
func numericHolds(num []byte) bool {
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
			negative := false
			for _, c := range num[i+1:] {
				switch c {
				case '-':
					negative = true
				case '+':
				default:
					exponent = exponent*10 + int(c-'0')
					if exponent >= numericExponent {
						return false
					}
				}
			}
			if negative {
				exponent = -exponent
			}
			i = len(num)
		}
	}
	if fraction-exponent > numericScale {
		return false
	}
	return lead < 0 || whole-lead+exponent <= numericDigits
}
