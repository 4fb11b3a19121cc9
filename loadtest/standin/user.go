package standin

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/grafana/sobek"
)

// user is a virtual user: a JavaScript runtime of its own, in which the script's init code has run.
type user struct {
	run *run
	rt  *sobek.Runtime
	ctx context.Context
	id  int
	// initialising is true while the init code runs, which may do other things than the rest.
	initialising bool
	exports      *sobek.Object
	// expected are the answers that are not failures.
	expected *statuses

	scenario  string
	tags      map[string]string
	progress  float64
	iteration int
	vuTags    *sobek.Object
}

// newUser runs the init code. Call free when done.
func newUser(ctx context.Context, r *run, id int) (_ *user, free func(), err error) {
	u := &user{run: r, rt: sobek.New(), ctx: ctx, id: id, initialising: true, expected: &statuses{{200, 399}},
		tags: map[string]string{}}
	stop := context.AfterFunc(ctx, func() { u.rt.Interrupt(context.Cause(ctx)) })
	free = func() { stop() }
	u.vuTags = u.rt.NewObject()
	globals := map[string]any{
		"__ENV": r.opts.Env, "__VU": id, "__ITER": 0, "open": u.open,
		"console": map[string]any{"log": u.print, "warn": u.print, "error": u.print},
		modulesGlobal: map[string]any{
			"k6":      map[string]any{"check": u.check, "fail": u.fail, "group": u.group, "sleep": u.sleep},
			"k6/http": u.httpModule(),
			"k6/metrics": map[string]any{"Counter": u.metric("counter"), "Gauge": u.metric("gauge"),
				"Rate": u.metric("rate"), "Trend": u.metric("trend")},
			"k6/data":      map[string]any{"SharedArray": u.sharedArray},
			"k6/encoding":  map[string]any{"b64encode": u.b64encode, "b64decode": u.b64decode},
			"k6/execution": map[string]any{"scenario": u.scenarioObject(), "vu": u.vuObject()},
		},
	}
	for name, value := range globals {
		if err := u.rt.Set(name, value); err != nil {
			return nil, free, err
		}
	}
	u.exports, err = load(u.rt, r.script)
	if err != nil {
		return nil, free, fmt.Errorf("init code: %w", err)
	}
	u.initialising = false
	return u, free, nil
}

// call runs an exported function and passes on what it returns.
func (u *user) call(name string, args ...sobek.Value) (sobek.Value, error) {
	f, ok := sobek.AssertFunction(u.exports.Get(name))
	if !ok {
		return nil, fmt.Errorf("the script exports no function %q", name)
	}
	v, err := f(sobek.Undefined(), args...)
	var ex *sobek.Exception
	if errors.As(err, &ex) {
		err = thrown(ex.Value())
	}
	if err != nil {
		return nil, fmt.Errorf("%s(): %w", name, err)
	}
	return v, nil
}

func (u *user) has(name string) bool {
	v := u.exports.Get(name)
	return v != nil && !sobek.IsUndefined(v)
}

// throw ends the JavaScript function that called into Go.
func (u *user) throw(format string, args ...any) {
	panic(u.rt.NewGoError(fmt.Errorf(format, args...)))
}

func (u *user) needInit(what string, inInit bool) {
	if u.initialising != inInit {
		u.throw("%s belongs %s the init code", what, map[bool]string{true: "into", false: "behind"}[inInit])
	}
}

func (u *user) print(call sobek.FunctionCall) sobek.Value {
	var parts []string
	for _, a := range call.Arguments {
		parts = append(parts, a.String())
	}
	u.run.opts.Log(strings.Join(parts, " "))
	return sobek.Undefined()
}

func (u *user) open(path string) string {
	u.needInit("open()", true)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(u.run.script), path))
	if err != nil {
		u.throw("open: %w", err)
	}
	return string(text)
}

func (u *user) check(call sobek.FunctionCall) sobek.Value {
	sets := call.Argument(1).ToObject(u.rt)
	all := true
	for _, name := range sets.Keys() {
		v := sets.Get(name)
		if f, ok := sobek.AssertFunction(v); ok {
			var err error
			if v, err = f(sobek.Undefined(), call.Argument(0)); err != nil {
				panic(err)
			}
		}
		ok := v.ToBoolean()
		all = all && ok
		tags := u.readTags(call.Argument(2))
		tags["check"] = name
		u.emit("checks", number(ok), tags)
		u.run.count(name, ok)
	}
	return u.rt.ToValue(all)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (u *user) fail(message string) { u.throw("%s", message) }

func (u *user) group(call sobek.FunctionCall) sobek.Value {
	f, ok := sobek.AssertFunction(call.Argument(1))
	if !ok {
		u.throw("group() needs a function")
	}
	v, err := f(sobek.Undefined())
	if err != nil {
		panic(err)
	}
	return v
}

func (u *user) sleep(seconds float64) {
	t := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-u.ctx.Done():
		u.throw("sleep: %w", context.Cause(u.ctx))
	}
}

func (u *user) metric(k kind) func(sobek.ConstructorCall) *sobek.Object {
	return func(call sobek.ConstructorCall) *sobek.Object {
		u.needInit("a metric", true)
		name := call.Argument(0).String()
		if err := u.run.metrics.define(name, k); err != nil {
			u.throw("%w", err)
		}
		must(call.This.Set("name", name))
		must(call.This.Set("add", func(add sobek.FunctionCall) sobek.Value {
			u.needInit("adding to a metric", false)
			value := add.Argument(0).ToFloat()
			if value != value {
				u.throw("%s.add(%s): not a number", name, add.Argument(0))
			}
			u.emit(name, value, u.readTags(add.Argument(1)))
			return sobek.Undefined()
		}))
		return nil
	}
}

// emit adds a value under all the tags that hold here.
func (u *user) emit(name string, value float64, own map[string]string) {
	tags := map[string]string{"scenario": u.scenario}
	maps.Copy(tags, u.tags)
	maps.Copy(tags, u.readTags(u.vuTags))
	maps.Copy(tags, own)
	u.run.metrics.add(name, value, tags)
}

func (u *user) readTags(v sobek.Value) map[string]string {
	tags := map[string]string{}
	if v == nil || sobek.IsUndefined(v) || sobek.IsNull(v) {
		return tags
	}
	o := v.ToObject(u.rt)
	for _, k := range o.Keys() {
		tags[k] = o.Get(k).String()
	}
	return tags
}

// sharedArray has its function run once in a test; every user gets copies of the elements.
func (u *user) sharedArray(call sobek.ConstructorCall) *sobek.Object {
	u.needInit("a SharedArray", true)
	name := call.Argument(0).String()
	text, err := u.run.share(name, func() (string, error) {
		f, ok := sobek.AssertFunction(call.Argument(1))
		if !ok {
			return "", fmt.Errorf("SharedArray %q needs a function", name)
		}
		v, err := f(sobek.Undefined())
		if err != nil {
			return "", err
		}
		return u.stringify(v)
	})
	if err != nil {
		u.throw("%w", err)
	}
	array := u.parse(text).ToObject(u.rt)
	if array.ClassName() != "Array" {
		u.throw("the function of SharedArray %q has to return an array", name)
	}
	freeze, _ := sobek.AssertFunction(u.rt.GlobalObject().Get("Object").ToObject(u.rt).Get("freeze"))
	if _, err := freeze(sobek.Undefined(), array); err != nil {
		panic(err)
	}
	return array
}

func (u *user) json(method string, arg sobek.Value) (sobek.Value, error) {
	f, _ := sobek.AssertFunction(u.rt.GlobalObject().Get("JSON").ToObject(u.rt).Get(method))
	return f(sobek.Undefined(), arg)
}

func (u *user) stringify(v sobek.Value) (string, error) {
	text, err := u.json("stringify", v)
	if err != nil || sobek.IsUndefined(text) {
		return "null", err
	}
	return text.String(), nil
}

func (u *user) parse(text string) sobek.Value {
	v, err := u.json("parse", u.rt.ToValue(text))
	if err != nil {
		panic(err)
	}
	return v
}

func (u *user) scenarioObject() *sobek.Object {
	return u.getters(map[string]func() any{
		"name":            func() any { return u.scenario },
		"progress":        func() any { return u.progress },
		"iterationInTest": func() any { return u.iteration },
	})
}

func (u *user) vuObject() *sobek.Object {
	o := u.getters(map[string]func() any{
		"idInTest":            func() any { return u.id },
		"idInInstance":        func() any { return u.id },
		"iterationInScenario": func() any { return u.iteration },
	})
	must(o.Set("metrics", map[string]any{"tags": u.vuTags}))
	return o
}

func (u *user) getters(all map[string]func() any) *sobek.Object {
	o := u.rt.NewObject()
	for name, get := range all {
		f := u.rt.ToValue(func(sobek.FunctionCall) sobek.Value { return u.rt.ToValue(get()) })
		must(o.DefineAccessorProperty(name, f, nil, sobek.FLAG_FALSE, sobek.FLAG_TRUE))
	}
	return o
}

func (u *user) b64encode(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func (u *user) b64decode(text string) string {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		u.throw("b64decode: %w", err)
	}
	return string(b)
}

// must is for what only a mistake in this package makes fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
