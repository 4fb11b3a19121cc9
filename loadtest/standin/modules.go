package standin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/sobek"
)

// exports are the names that each of k6's modules has here. The module's object is under its name in the global
// below, from which a few lines of JavaScript export it.
var exports = map[string][]string{
	"k6":           {"check", "fail", "group", "sleep"},
	"k6/http":      {"del", "expectedStatuses", "get", "post", "put", "request", "setResponseCallback"},
	"k6/metrics":   {"Counter", "Gauge", "Rate", "Trend"},
	"k6/execution": {"instance", "scenario", "test", "vu"},
	"k6/data":      {"SharedArray"},
	"k6/encoding":  {"b64decode", "b64encode"},
}

const modulesGlobal = "__standin_modules"

// loader finds modules: k6's own by name, ours by a path relative to the file that imports them.
type loader struct {
	modules map[string]sobek.ModuleRecord
	paths   map[any]string
}

func (l *loader) resolve(from any, specifier string) (sobek.ModuleRecord, error) {
	names, known := exports[specifier]
	path, source := specifier, ""
	switch {
	case known:
		source = fmt.Sprintf("const m = globalThis.%s[%q]; export default m; export const { %s } = m;", modulesGlobal,
			specifier, strings.Join(names, ", "))
	case strings.HasPrefix(specifier, "./") || strings.HasPrefix(specifier, "../"):
		path = filepath.Join(filepath.Dir(l.paths[from]), specifier)
	case !filepath.IsAbs(specifier):
		return nil, fmt.Errorf("there is no module %q here; scripts import k6's modules and files of their own folder",
			specifier)
	}
	if m := l.modules[path]; m != nil {
		return m, nil
	}
	if !known {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		source = string(text)
	}
	m, err := sobek.ParseModule(path, source, l.resolve)
	if err != nil {
		return nil, err
	}
	l.modules[path], l.paths[m] = m, path
	return m, nil
}

// load runs the module at path, an absolute one, and returns what it exports.
func load(rt *sobek.Runtime, path string) (*sobek.Object, error) {
	l := &loader{modules: map[string]sobek.ModuleRecord{}, paths: map[any]string{}}
	m, err := l.resolve(nil, path)
	if err != nil {
		return nil, err
	}
	if err := m.Link(); err != nil {
		return nil, err
	}
	promise := m.Evaluate(rt)
	switch promise.State() {
	case sobek.PromiseStateFulfilled:
		return rt.NamespaceObjectFor(m), nil
	case sobek.PromiseStateRejected:
		return nil, thrown(promise.Result())
	}
	return nil, errors.New("init code waits for something; k6 has no top-level await")
}

// thrown makes a Go error of what JavaScript threw.
func thrown(v sobek.Value) error {
	if o, ok := v.(*sobek.Object); ok {
		if stack := o.Get("stack"); stack != nil && !sobek.IsUndefined(stack) {
			return errors.New(strings.TrimSpace(stack.String()))
		}
	}
	return errors.New(v.String())
}
