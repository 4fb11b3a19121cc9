package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/duration"
)

// ParseValue reads text into what p points to.
func ParseValue(p any, unit, text string) error {
	text = strings.TrimSpace(text)
	switch p := p.(type) {
	case *string:
		*p = text
	case *[]string:
		*p = nil
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*p = append(*p, part)
			}
		}
	case *bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		*p = v
	case *time.Duration:
		v, err := duration.Parse(text)
		if err != nil {
			return err
		}
		*p = v
	case *int:
		v, err := parseInt(unit, text)
		if err != nil {
			return err
		}
		*p = int(v)
	case *int32:
		v, err := parseInt(unit, text)
		if err != nil {
			return err
		}
		if v > math.MaxInt32 || v < math.MinInt32 {
			return fmt.Errorf("%s is out of range", text)
		}
		*p = int32(v)
	case *int64:
		v, err := parseInt(unit, text)
		if err != nil {
			return err
		}
		*p = v
	case *float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%q is not a number", text)
		}
		*p = v
	default:
		panic(fmt.Sprintf("setting of type %T", p))
	}
	return nil
}

// FormatValue writes what p points to in the form that ParseValue reads.
func FormatValue(p any, unit string) string {
	switch p := p.(type) {
	case *string:
		return *p
	case *[]string:
		return strings.Join(*p, ",")
	case *bool:
		return strconv.FormatBool(*p)
	case *time.Duration:
		return duration.Format(*p)
	case *int:
		return formatInt(int64(*p), unit)
	case *int32:
		return formatInt(int64(*p), unit)
	case *int64:
		return formatInt(*p, unit)
	case *float64:
		return strconv.FormatFloat(*p, 'g', -1, 64)
	}
	panic(fmt.Sprintf("setting of type %T", p))
}

var byteUnits = []struct {
	name string
	size int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

func parseInt(unit, text string) (int64, error) {
	factor := int64(1)
	digits := text
	if unit == "bytes" {
		for _, u := range byteUnits {
			if n, ok := strings.CutSuffix(text, u.name); ok {
				digits, factor = strings.TrimSpace(n), u.size
				break
			}
		}
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(digits, "_", ""), 10, 64)
	if err != nil {
		if unit == "bytes" {
			return 0, fmt.Errorf("%q is not a size such as 65536, 64KiB or 256MiB", text)
		}
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	if v > math.MaxInt64/factor || v < math.MinInt64/factor {
		return 0, fmt.Errorf("%q is out of range", text)
	}
	return v * factor, nil
}

func formatInt(v int64, unit string) string {
	if unit == "bytes" && v != 0 {
		for _, u := range byteUnits[:3] {
			if v%u.size == 0 {
				return strconv.FormatInt(v/u.size, 10) + u.name
			}
		}
	}
	return strconv.FormatInt(v, 10)
}
