package expr

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/internal/yamlfile"
)

// Template makes the payload of a message: a tree whose leaves are expressions. It is safe for concurrent use.
type Template struct {
	leaf *Program
	// keys are set for an object; otherwise items are those of a list.
	keys  []string
	items []*Template
}

// maxNesting bounds a payload's depth.
const maxNesting = 10

// Template compiles the expressions of a YAML value, whatever its form. Faults are reported at their places.
func (sc *Scope) Template(f *yamlfile.File, n *yaml.Node, where string) *Template {
	return sc.template(f, n, where, 0)
}

func (sc *Scope) template(src *yamlfile.File, n *yaml.Node, where string, depth int) *Template {
	if depth > maxNesting {
		src.Fault(n, where, "a payload can be nested %d deep at most", maxNesting)
		return nil
	}
	t := &Template{}
	switch n = yamlfile.Resolve(n); n.Kind {
	case yaml.MappingNode:
		t.keys = []string{}
		for k, v := range src.Pairs(n, where) {
			t.keys = append(t.keys, k.Value)
			t.items = append(t.items, sc.template(src, v, where+"."+k.Value, depth+1))
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			t.items = append(t.items, sc.template(src, item, where, depth+1))
		}
	default:
		t.leaf = sc.compile(src, n, where, anyValue)
	}
	return t
}

// ErrTooLarge is returned for a payload of more bytes than are allowed.
var ErrTooLarge = errors.New("larger than evaluate.max-payload-bytes")

// Append appends the payload's JSON. It stops with ErrTooLarge soon after dst is longer than most bytes; a payload that
// is too large by its last expression has to be found by its length.
func (t *Template) Append(dst []byte, v *Vars, most int) (_ []byte, err error) {
	switch {
	case len(dst) > most:
		return dst, ErrTooLarge
	case t.leaf != nil:
		return t.leaf.appendJSON(dst, v)
	case t.keys != nil:
		dst = append(dst, '{')
		for i, item := range t.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = item.Append(append(jsontext.AppendString(dst, t.keys[i]), ':'), v, most); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	}
	dst = append(dst, '[')
	for i, item := range t.items {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = item.Append(dst, v, most); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// appendJSON appends the value. A property on its own is passed on as the client wrote it, with all its digits.
func (p *Program) appendJSON(dst []byte, v *Vars) ([]byte, error) {
	switch {
	case v.view.event == nil || p.member == nil:
	case p.member.text != nil:
		return jsontext.AppendString(dst, p.member.text(v.view.event)), nil
	default:
		m := v.view.props.find(p.member.property)
		if m == nil {
			return dst, missing("properties." + p.member.property)
		}
		return append(dst, m.raw...), nil
	}
	out, err := p.eval(v)
	if err != nil {
		return dst, err
	}
	return appendJSON(dst, out)
}
