package expr

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// appendJSON appends the value of an expression as JSON. What came from an event's properties is passed on as the
// client wrote it.
func appendJSON(dst []byte, v ref.Val) ([]byte, error) {
	switch v := v.(type) {
	case types.String:
		return jsontext.AppendString(dst, string(v)), nil
	case types.Int:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case types.Uint:
		return strconv.AppendUint(dst, uint64(v), 10), nil
	case types.Double:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return dst, fmt.Errorf("%v can't be written as JSON", f)
		}
		return strconv.AppendFloat(dst, float64(v), 'g', -1, 64), nil
	case types.Bool:
		return strconv.AppendBool(dst, bool(v)), nil
	case types.Null:
		return append(dst, "null"...), nil
	case types.Timestamp:
		return appendTime(dst, v.Time), nil
	case types.Duration:
		return jsontext.AppendString(dst, v.String()), nil
	case types.Bytes:
		return jsontext.AppendString(dst, base64.StdEncoding.EncodeToString(v)), nil
	case *object:
		if v.raw == "" {
			return append(dst, "{}"...), nil
		}
		return append(dst, v.raw...), nil
	case *view:
		return AppendEvent(dst, v.event), nil
	case *types.Err:
		return dst, v
	case traits.Mapper:
		return appendMap(dst, v)
	case traits.Lister:
		dst = append(dst, '[')
		for i := types.Int(0); i < v.Size().(types.Int); i++ {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendJSON(dst, v.Get(i)); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	}
	return dst, fmt.Errorf("a value of type %s can't be written as JSON", v.Type().TypeName())
}

func appendMap(dst []byte, m traits.Mapper) ([]byte, error) {
	var keys []string
	for it := m.Iterator(); it.HasNext() == types.True; {
		k, ok := it.Next().(types.String)
		if !ok {
			return dst, errors.New("a map whose keys are not strings can't be written as JSON")
		}
		keys = append(keys, string(k))
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsontext.AppendString(dst, k), ':')
		var err error
		if dst, err = appendJSON(dst, m.Get(types.String(k))); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// AppendEvent appends the whole event as JSON, under the names by which it was posted. It has a time in any case: the
// one by which the rules decide.
func AppendEvent(dst []byte, e *pipeline.Event) []byte {
	timed := *e
	timed.TimeUnknown = false
	return timed.AppendJSON(dst)
}

// AppendTrigger appends the event that started a timer as AppendEvent does, with late_by: for how many whole seconds it
// was on its way. One that arrived within a second has none.
func AppendTrigger(dst []byte, e *pipeline.Event) []byte {
	dst = AppendEvent(dst, e)
	if late := int64(e.LateBy() / time.Second); late > 0 {
		dst = append(dst[:len(dst)-1], `,"late_by":`...)
		dst = append(strconv.AppendInt(dst, late, 10), '}')
	}
	return dst
}

func appendTime(dst []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(dst, '"'), time.RFC3339Nano), '"')
}
