package expr

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/tidwall/gjson"

	"sluice.example/sluice/pipeline"
)

// view is an event as expressions see it. Its properties are read at the first use of one of them, and once per
// event however many rules look at them.
type view struct {
	event *pipeline.Event
	props object
}

// set points the view at another event and keeps its memory.
func (r *view) set(ev *pipeline.Event) {
	r.event = ev
	r.props.set(unsafe.String(unsafe.SliceData(ev.Properties), len(ev.Properties)))
}

// object is a JSON object that is read when first asked for a member. Where a key is repeated the last one counts, as
// in jsonb.
type object struct {
	raw     string
	read    bool
	members []member
}

func (o *object) set(raw string) { o.raw, o.read, o.members = raw, false, o.members[:0] }

func (o *object) all() []member {
	if !o.read {
		o.read = true
		o.members = appendMembers(o.members, o.raw)
	}
	return o.members
}

// find returns nil if there is no such member.
func (o *object) find(key string) *member {
	all := o.all()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].key == key {
			return &all[i]
		}
	}
	return nil
}

// value is a member as CEL has it.
func (m *member) value() ref.Val {
	if m.val == nil {
		m.val = jsonValue(m.raw)
	}
	return m.val
}

// null reports whether the value is null; what is not JSON is null as well.
func (m *member) null() bool { return m.value() == types.NullValue }

// jsonValue is a JSON value as CEL has it.
func jsonValue(raw string) ref.Val {
	if raw == "" {
		return types.NullValue
	}
	switch c := raw[0]; {
	case c == '-' || c >= '0' && c <= '9':
		return jsonNumber(raw)
	case c == '{':
		return &object{raw: raw}
	}
	switch v := gjson.Parse(raw); v.Type {
	case gjson.String:
		return types.String(v.Str)
	case gjson.True:
		return types.True
	case gjson.False:
		return types.False
	case gjson.JSON:
		var items []ref.Val
		v.ForEach(func(_, item gjson.Result) bool {
			items = append(items, jsonValue(item.Raw))
			return true
		})
		return jsonList{types.NewRefValList(types.DefaultTypeAdapter, items), len(raw)}
	}
	return types.NullValue
}

// jsonList is a JSON list of so many bytes.
type jsonList struct {
	traits.Lister
	bytes int
}

// jsonNumber: integers stay integers, with all their digits, or are errors.
func jsonNumber(raw string) ref.Val {
	if !isWhole(raw) {
		f, _ := strconv.ParseFloat(raw, 64) // infinite where it is too large
		return types.Double(f)
	}
	if i, err := strconv.ParseInt(raw, 10, 64); err == nil {
		return types.Int(i)
	}
	if u, err := strconv.ParseUint(raw, 10, 64); err == nil {
		return types.Uint(u)
	}
	return types.NewErr("the integer %.40s has more than 64 bits", raw)
}

// isWhole: whole numbers are compared by their digits, others by their value.
func isWhole(s string) bool { return !strings.ContainsAny(s, ".eE") }

func missing(key string) error { return errMissing{fmt.Errorf("the event has no %q", key)} }

// What follows makes object a CEL map and view a CEL object. No expression can reach ConvertToNative.

var errNative = errors.New("not convertible")

func (o *object) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }
func (o *object) Type() ref.Type                            { return types.MapType }
func (o *object) Value() any                                { return o }

func (o *object) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.MapType:
		return o
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("an object can't be converted to %s", t.TypeName())
}

func (o *object) keys() map[string]*member {
	m := make(map[string]*member, len(o.all()))
	for i := range o.all() {
		m[o.members[i].key] = &o.members[i]
	}
	return m
}

func (o *object) Equal(other ref.Val) ref.Val {
	m, ok := other.(traits.Mapper)
	keys := o.keys()
	if !ok || m.Size() != types.Int(len(keys)) {
		return types.False
	}
	for k, v := range keys {
		ov, found := m.Find(types.String(k))
		if !found || types.Equal(v.value(), ov) != types.True {
			return types.False
		}
	}
	return types.True
}

func (o *object) Find(key ref.Val) (ref.Val, bool) {
	k, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	m := o.find(string(k))
	if m == nil {
		return nil, false
	}
	return m.value(), true
}

func (o *object) Get(key ref.Val) ref.Val {
	v, ok := o.Find(key)
	switch {
	case ok:
		return v
	case v != nil:
		return v
	}
	return types.WrapErr(missing(fmt.Sprint(key.Value())))
}

func (o *object) Contains(key ref.Val) ref.Val {
	v, ok := o.Find(key)
	if !ok && v != nil {
		return v
	}
	return types.Bool(ok)
}

func (o *object) Size() ref.Val { return types.Int(len(o.keys())) }

func (o *object) Iterator() traits.Iterator {
	keys := make([]string, 0, len(o.all()))
	for k := range o.keys() {
		keys = append(keys, k)
	}
	return types.NewStringList(types.DefaultTypeAdapter, keys).Iterator()
}

func (r *view) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }
func (r *view) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("an event can't be converted to %s", t.TypeName())
}
func (r *view) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(r)) }
func (r *view) Type() ref.Type              { return eventType }
func (r *view) Value() any                  { return r }

var eventType = types.NewObjectType("event")

// eventTexts are the texts of event. One that the client did not send is empty, and has() says that it is not there.
var eventTexts = map[string]func(*pipeline.Event) string{
	"event_id":     (*pipeline.Event).SentID,
	"event_name":   func(e *pipeline.Event) string { return e.Name },
	"anonymous_id": func(e *pipeline.Event) string { return e.AnonymousID },
	"user_id":      func(e *pipeline.Event) string { return e.UserID },
	"session_id":   func(e *pipeline.Event) string { return e.SessionID },
	"page_url":     func(e *pipeline.Event) string { return e.PageURL },
	"referrer":     func(e *pipeline.Event) string { return e.Referrer },
	"user_agent":   func(e *pipeline.Event) string { return e.UserAgent },
}

// eventFields are the members of event, beside properties.
var eventFields = func() map[string]*types.FieldType {
	fields := map[string]*types.FieldType{
		"occurred_at": timeField(func(e *pipeline.Event) time.Time { return e.OccurredAt }),
		"received_at": timeField(func(e *pipeline.Event) time.Time { return e.ReceivedAt }),
	}
	for name, get := range eventTexts {
		fields[name] = textField(get)
	}
	return fields
}()

func textField(get func(*pipeline.Event) string) *types.FieldType {
	return &types.FieldType{
		Type:    types.StringType,
		IsSet:   func(obj any) bool { r, ok := obj.(*view); return ok && get(r.event) != "" },
		GetFrom: func(obj any) (any, error) { return types.String(get(obj.(*view).event)), nil },
	}
}

func timeField(get func(*pipeline.Event) time.Time) *types.FieldType {
	return &types.FieldType{
		Type:    types.TimestampType,
		IsSet:   func(any) bool { return true },
		GetFrom: func(obj any) (any, error) { return types.Timestamp{Time: get(obj.(*view).event)}, nil },
	}
}

// propertiesField is event.properties, of the type that the rule's event names have.
func propertiesField(t *types.Type) *types.FieldType {
	return &types.FieldType{
		Type:    t,
		IsSet:   func(obj any) bool { r, ok := obj.(*view); return ok && r.props.raw != "" },
		GetFrom: func(obj any) (any, error) { return &obj.(*view).props, nil },
	}
}

// propertyField is one declared property. A value of another type than the declared one is an error when it is met.
func propertyField(name string, t *types.Type) *types.FieldType {
	return &types.FieldType{
		Type: t,
		IsSet: func(obj any) bool {
			o, ok := obj.(*object)
			if !ok {
				return false
			}
			m := o.find(name)
			return m != nil && !m.null()
		},
		GetFrom: func(obj any) (any, error) {
			m := obj.(*object).find(name)
			if m == nil || m.null() && t.Kind() != types.DynKind {
				return nil, missing("properties." + name)
			}
			return as(name, m.value(), t)
		},
	}
}

// as checks that a value is of a declared type; numbers are converted where nothing is lost.
func as(name string, v ref.Val, t *types.Type) (ref.Val, error) {
	if err, ok := v.(*types.Err); ok {
		return nil, err
	}
	switch t.Kind() {
	case types.DynKind:
		return v, nil
	case types.DoubleKind:
		if i, ok := v.(types.Int); ok && types.Int(types.Double(i)) == i {
			return types.Double(i), nil
		}
	case types.IntKind:
		if d, ok := v.(types.Double); ok && d >= -1<<53 && d <= 1<<53 && d == types.Double(int64(d)) {
			return types.Int(d), nil
		}
	}
	if v.Type().TypeName() != t.TypeName() {
		return nil, fmt.Errorf("properties.%s is of type %s, but is declared as %s", name, v.Type().TypeName(), t.TypeName())
	}
	return v, nil
}

// digestFields are the members of digest, in the payload of a digest.
var digestFields = map[string]*types.FieldType{
	"count":   propertyField("count", types.IntType),
	"subject": propertyField("subject", types.StringType),
	"since":   propertyField("since", types.StringType),
}

// rateFields are the members of rate, in the payload of a rate rule.
var rateFields = map[string]*types.FieldType{
	"state":        propertyField("state", types.StringType),
	"value":        propertyField("value", types.DoubleType),
	"baseline":     propertyField("baseline", types.DoubleType),
	"change":       propertyField("change", types.DoubleType),
	"z":            propertyField("z", types.DoubleType),
	"numerator":    propertyField("numerator", types.IntType),
	"denominator":  propertyField("denominator", types.IntType),
	"window_start": propertyField("window_start", types.StringType),
	"window_end":   propertyField("window_end", types.StringType),
	"since":        propertyField("since", types.StringType),
}
