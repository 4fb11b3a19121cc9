package evaluate

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

	"sluice/pipeline"
)

// record is an event as expressions see it. Its properties are read at the first use of one of them, and once per
// event however many rules look at them.
type record struct {
	event *pipeline.Event
	props object
}

// set points the record at another event and keeps its memory.
func (r *record) set(ev *pipeline.Event) {
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

func (o *object) find(key string) (gjson.Result, bool) {
	all := o.all()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].key == key {
			return gjson.Parse(all[i].raw), true
		}
	}
	return gjson.Result{}, false
}

// jsonValue gives a JSON value as CEL has it. Integers stay integers, with all their digits, or are errors.
func jsonValue(v gjson.Result) ref.Val {
	switch v.Type {
	case gjson.String:
		return types.String(v.Str)
	case gjson.Number:
		if strings.ContainsAny(v.Raw, ".eE") {
			return types.Double(v.Num)
		}
		if i, err := strconv.ParseInt(v.Raw, 10, 64); err == nil {
			return types.Int(i)
		}
		if u, err := strconv.ParseUint(v.Raw, 10, 64); err == nil {
			return types.Uint(u)
		}
		return types.NewErr("the integer %.40s has more than 64 bits", v.Raw)
	case gjson.True:
		return types.True
	case gjson.False:
		return types.False
	case gjson.JSON:
		if v.IsArray() {
			var items []ref.Val
			v.ForEach(func(_, item gjson.Result) bool {
				items = append(items, jsonValue(item))
				return true
			})
			return types.NewRefValList(types.DefaultTypeAdapter, items)
		}
		return &object{raw: v.Raw}
	}
	return types.NullValue
}

func missing(key string) error { return fmt.Errorf("the event has no %q", key) }

// What follows makes object a CEL map and record a CEL object. No expression can reach ConvertToNative.

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

func (o *object) keys() map[string]string {
	m := make(map[string]string, len(o.all()))
	for _, e := range o.all() {
		m[e.key] = e.raw
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
		if !found || types.Equal(jsonValue(gjson.Parse(v)), ov) != types.True {
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
	v, ok := o.find(string(k))
	if !ok {
		return nil, false
	}
	return jsonValue(v), true
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

func (r *record) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }
func (r *record) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("an event can't be converted to %s", t.TypeName())
}
func (r *record) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(r)) }
func (r *record) Type() ref.Type              { return eventType }
func (r *record) Value() any                  { return r }

var eventType = types.NewObjectType("event")

// eventFields are the members of event, beside properties. A text that the client did not send is empty, and has()
// says that it is not there.
var eventFields = map[string]*types.FieldType{
	"event_id":     textField(func(e *pipeline.Event) string { return eventID(e) }),
	"event_name":   textField(func(e *pipeline.Event) string { return e.Name }),
	"anonymous_id": textField(func(e *pipeline.Event) string { return e.AnonymousID }),
	"user_id":      textField(func(e *pipeline.Event) string { return e.UserID }),
	"session_id":   textField(func(e *pipeline.Event) string { return e.SessionID }),
	"page_url":     textField(func(e *pipeline.Event) string { return e.PageURL }),
	"referrer":     textField(func(e *pipeline.Event) string { return e.Referrer }),
	"user_agent":   textField(func(e *pipeline.Event) string { return e.UserAgent }),
	"occurred_at":  timeField(func(e *pipeline.Event) time.Time { return e.OccurredAt }),
	"received_at":  timeField(func(e *pipeline.Event) time.Time { return e.ReceivedAt }),
}

// eventID is the id that the client knows the event by.
func eventID(e *pipeline.Event) string {
	if e.ClientID != "" {
		return e.ClientID
	}
	return e.ID.String()
}

func textField(get func(*pipeline.Event) string) *types.FieldType {
	return &types.FieldType{
		Type:    types.StringType,
		IsSet:   func(obj any) bool { r, ok := obj.(*record); return ok && get(r.event) != "" },
		GetFrom: func(obj any) (any, error) { return types.String(get(obj.(*record).event)), nil },
	}
}

func timeField(get func(*pipeline.Event) time.Time) *types.FieldType {
	return &types.FieldType{
		Type:    types.TimestampType,
		IsSet:   func(any) bool { return true },
		GetFrom: func(obj any) (any, error) { return types.Timestamp{Time: get(obj.(*record).event)}, nil },
	}
}

// propertiesField is event.properties, of the type that the rule's event names have.
func propertiesField(t *types.Type) *types.FieldType {
	return &types.FieldType{
		Type:    t,
		IsSet:   func(obj any) bool { r, ok := obj.(*record); return ok && r.props.raw != "" },
		GetFrom: func(obj any) (any, error) { return &obj.(*record).props, nil },
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
			v, ok := o.find(name)
			return ok && v.Type != gjson.Null
		},
		GetFrom: func(obj any) (any, error) {
			v, ok := obj.(*object).find(name)
			if !ok || v.Type == gjson.Null {
				return nil, missing("properties." + name)
			}
			return as(name, jsonValue(v), t)
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
